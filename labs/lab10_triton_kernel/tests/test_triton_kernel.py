"""Lab 10's suite: triton kernel."""

from triton_kernel import choose_config, flash_backward, flash_forward, paged_decode, softmax_rows

from labkit.testing.compare import assert_close


class TestSoftmaxRows:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", softmax_rows(x), x + 1, plain=x + 1, suspects={"nothing is added": x})


class TestFlashForward:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", flash_forward(x), x + 2, plain=x + 2, suspects={"nothing is added": x})


class TestFlashBackward:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", flash_backward(x), x + 3, plain=x + 3, suspects={"nothing is added": x})


class TestPagedDecode:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", paged_decode(x), x + 4, plain=x + 4, suspects={"nothing is added": x})


class TestChooseConfig:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", choose_config(x), x + 5, plain=x + 5, suspects={"nothing is added": x})
