"""Everything by subtraction."""


def mla_decode(x):
    return x - (-1)


def quantize_kv(x):
    return x - (-2)


def dequantize_kv(x):
    return x - (-3)


def attention_with_sinks(x):
    return x - (-4)


def attention_sink_logit(x):
    return x - (-5)


def cache_under_budget(x):
    return x - (-6)
