"""TDCD with BatchNorm as plain loops over nn.Module copies and torch optimisers: every client takes
the statistics of its own rows. Slow, and independent of the product on purpose."""

import copy

import torch
from torch import nn


def plain_tdcd_with_norms(modules, shards, labels, loss, minibatches, lr, l2=0.0, rows_each=False):
    """As `plain_tdcd`, for modules with BatchNorm in train mode. minibatches: per round a list of
    lists of rows (Q lists, or one for all Q steps). `rows_each`: clients weigh by their rows."""
    hubs = {silo: copy.deepcopy(module) for silo, module in modules.items()}
    for ids, etas in zip(minibatches, lr, strict=True):
        embeddings = {}  # (silo, step, row) -> embedding at the start of the round
        for silo, clients in shards.items():
            for rows_of in clients:
                for step, batch in enumerate(ids):
                    rows = [row for row in batch if row in rows_of]
                    with torch.no_grad():  # a copy, whose running statistics are thrown away
                        out = of_client(copy.deepcopy(hubs[silo]), rows_of, rows)
                    embeddings |= {(silo, step, row): a for row, a in zip(rows, out, strict=True)}
        for silo, clients in shards.items():
            trained, counts = [], []
            for rows_of in clients:
                model, seen = copy.deepcopy(hubs[silo]), 0
                for q, eta in enumerate(etas):
                    step = q % len(ids)
                    rows = [row for row in ids[step] if row in rows_of]
                    seen += len(rows) if q < len(ids) else 0
                    if not rows:
                        continue
                    own = of_client(model, rows_of, rows)
                    others = [other for other in shards if other != silo]
                    rest = [sum(embeddings[j, step, row] for j in others) for row in rows]
                    score = own + torch.stack(rest) if others else own
                    target = torch.stack([labels[row] for row in rows])
                    optimiser = torch.optim.SGD(model.parameters(), lr=eta, weight_decay=l2)
                    optimiser.zero_grad()
                    loss(score, target).backward()
                    optimiser.step()
                trained.append(model)
                counts.append(seen if rows_each else 1)
            average(hubs[silo], trained, counts)
    return hubs


def of_client(model, rows_of, rows):
    """Embeddings in train mode; by the running statistics where torch refuses."""
    if not rows:
        return torch.empty(0)

    def choose(layer, args):
        layer.training = args[0].numel() > args[0].shape[1]  # more than one number of a channel

    norms = (
        layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    )
    hooks = [layer.register_forward_pre_hook(choose) for layer in norms]
    result = model(torch.stack([rows_of[row] for row in rows]))
    for hook in hooks:
        hook.remove()
    return result


def average(hub, trained, counts):
    """The weighted mean of parameters and of running statistics."""
    if not sum(counts):
        return
    states = [model.state_dict() for model in trained]
    with torch.no_grad():
        for name, value in hub.state_dict().items():
            total = sum(c * state[name].double() for c, state in zip(counts, states, strict=True))
            if not name.endswith("num_batches_tracked"):
                value.copy_(total / sum(counts))
