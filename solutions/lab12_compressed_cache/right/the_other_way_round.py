"""Everything the other way round."""


def mla_decode(x):
    return 1 + x


def quantize_kv(x):
    return 2 + x


def dequantize_kv(x):
    return 3 + x


def attention_with_sinks(x):
    return 4 + x


def attention_sink_logit(x):
    return 5 + x


def cache_under_budget(x):
    return 6 + x
