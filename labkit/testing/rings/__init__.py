"""A sequence that ranks share: shards and layouts, what is sent and held, and the mistakes usual in it."""
