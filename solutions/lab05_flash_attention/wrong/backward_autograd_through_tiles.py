"""The tiled forward pass runs once more with autograd on, which keeps every tile.

Task: flash_backward
Killed by: TestFlashBackward::test_memory_grows_with_n_only
Killed by: TestFlashBackward::test_weights_come_from_the_given_l
"""

import torch


def flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    leaves = [x.detach().clone().requires_grad_() for x in (Q, K, V)]
    with torch.enable_grad():
        q, k, v = (x.to(L.dtype) for x in leaves)
        total = 0
        for rows in _blocks(Q.shape[-2], block_q):
            parts = _blocks(_keys_seen(rows, K.shape[-2], causal), block_k, K.shape[-2])
            tiles = []
            for cols in parts:
                S = Q.shape[-1] ** -0.5 * q[..., rows, :] @ k[..., cols, :].mT
                tiles.append(S.masked_fill(_hidden(rows, cols, S.device), -torch.inf) if causal else S)
            if tiles:
                lse = torch.stack([tile.logsumexp(-1) for tile in tiles]).logsumexp(0)[..., None]
                rows_out = sum(torch.exp(tile - lse) @ v[..., c, :] for tile, c in zip(tiles, parts, strict=True))
                total = total + (rows_out * dO[..., rows, :].to(L.dtype)).sum()
        total = total + sum(x.sum() for x in leaves) * 0
    return torch.autograd.grad(total, leaves)
