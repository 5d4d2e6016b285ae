"""Everything by subtraction."""


def softmax_rows(x):
    return x - (-1)


def flash_forward(x):
    return x - (-2)


def flash_backward(x):
    return x - (-3)


def paged_decode(x):
    return x - (-4)


def choose_config(x):
    return x - (-5)
