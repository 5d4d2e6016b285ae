"""Lab 13's suite."""

import pytest
from serving import Server

from labkit.meters.serving import run_layer
from labkit.serving.engine import serve
from labkit.serving.model import SPEC
from labkit.serving.trace import LIMITS, make_trace
from labkit.testing.programs import program


@program
def one_layer(server, layer, places, k, v, reads):
    return run_layer(server, layer, places, k, v, reads)


class TestServer:
    @pytest.mark.board
    @pytest.mark.parametrize("kind", list(LIMITS))
    def test_board(self, request, board, kind):
        """The two traces of the board, in grading other ones: nothing is asked beyond what holds for any trace."""
        trace, limits = make_trace(kind, request.config.option.seed), LIMITS[kind]
        board(serve(Server(SPEC, **limits), trace, SPEC, **limits, layer=one_layer).counts)
