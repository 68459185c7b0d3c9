"""TDCD as two plain loops over nn.Module copies and torch optimisers, written from the papers'
pseudocode without a look at the product. Slow, and independent of it on purpose."""

import copy

import torch


def plain_tdcd(modules, shards, labels, loss, minibatches, lr, fresh):
    """modules: {silo: nn.Module}; shards: {silo: [{row: features}, ...]}; labels: {row: label};
    minibatches: per round a list of lists of rows (Q lists if fresh, one otherwise); lr: per round
    a list of Q step sizes; loss: (scores [b, d], labels [b]) -> mean. Returns the hubs' modules."""
    hubs = {silo: copy.deepcopy(module) for silo, module in modules.items()}
    for ids, etas in zip(minibatches, lr, strict=True):
        embeddings = {}  # (silo, row) -> embedding at the start of the round
        for silo, clients in shards.items():
            for rows_of in clients:
                for row in {row for rows in ids for row in rows} & rows_of.keys():
                    with torch.no_grad():
                        embeddings[silo, row] = hubs[silo](rows_of[row][None])[0]
        for silo, clients in shards.items():
            trained = []
            for rows_of in clients:
                model = copy.deepcopy(hubs[silo])
                for q, eta in enumerate(etas):
                    rows = [row for row in ids[q if fresh else 0] if row in rows_of]
                    if rows:
                        own = model(torch.stack([rows_of[row] for row in rows]))
                        others = [other for other in shards if other != silo]
                        rest = torch.stack(
                            [
                                sum((embeddings[j, row] for j in others), torch.zeros_like(own[0]))
                                for row in rows
                            ]
                        )
                        target = torch.stack([labels[row] for row in rows])
                        optimiser = torch.optim.SGD(model.parameters(), lr=eta)
                        optimiser.zero_grad()
                        loss(own + rest, target).backward()
                        optimiser.step()
                trained.append(model)
            with torch.no_grad():
                for name, value in hubs[silo].named_parameters():
                    copies = [dict(model.named_parameters())[name] for model in trained]
                    value.copy_(sum(copies) / len(copies))
    return hubs
