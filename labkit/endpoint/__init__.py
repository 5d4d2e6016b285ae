"""An OpenAI-compatible endpoint: Lab 13's server under a real language model, for real clients."""
