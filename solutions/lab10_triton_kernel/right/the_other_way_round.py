"""Everything the other way round."""


def softmax_rows(x):
    return 1 + x


def flash_forward(x):
    return 2 + x


def flash_backward(x):
    return 3 + x


def paged_decode(x):
    return 4 + x


def choose_config(x):
    return 5 + x
