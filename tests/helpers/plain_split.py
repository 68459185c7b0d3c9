"""FedBCD, SplitNN, FedAvg and FedProx as plain loops over nn.Module copies and torch optimisers,
written from the papers without a look at the product. Slow, and independent of it on purpose.

Everywhere: modules {silo: nn.Module}; shards {silo: [{row: features}, ...]}, one for each client;
labels {row: label}; minibatches: per round a list of lists of rows, one, or one for each local
step; lr: per round a list of Q step sizes; loss (scores [b, d], labels [b]) -> mean."""

import copy

import torch


def rows_of(ids, q, rows):
    """A client's rows of the minibatch of local step q."""
    return [row for row in ids[q % len(ids)] if row in rows]


def embedded(module, clients):
    """{row: embedding} of everything that a silo holds."""
    with torch.no_grad():
        return {row: module(x[None])[0] for rows in clients for row, x in rows.items()}


def average(hub, copies, weights=None):
    weights = weights or [1] * len(copies)
    with torch.no_grad():
        for value, *values in zip(
            hub.parameters(), *(model.parameters() for model in copies), strict=True
        ):
            value.copy_(sum(w * p for w, p in zip(weights, values, strict=True)) / sum(weights))


def steps(model, objective, ids, own, etas, prox=0.0):
    """Q steps on objective(model, rows) + prox / 2 |theta - start|^2, where there are rows."""
    start = [p.detach().clone() for p in model.parameters()]
    for q, eta in enumerate(etas):
        rows = rows_of(ids, q, own)
        if rows:
            optimiser = torch.optim.SGD(model.parameters(), lr=eta)
            optimiser.zero_grad()
            near = sum(
                (p - s).square().sum() for p, s in zip(model.parameters(), start, strict=True)
            )
            (objective(model, rows) + prox / 2 * near).backward()
            optimiser.step()
    return model


def plain_fedbcd(
    modules, shards, labels, loss, minibatches, lr, sequential=False, frozen=False, prox=0.0
):
    """Each silo, all at once or in turn: Q steps of its clients, and their mean."""
    hubs = {silo: copy.deepcopy(module) for silo, module in modules.items()}
    x = {j: {row: v for rows in shards[j] for row, v in rows.items()} for j in hubs}
    for ids, etas in zip(minibatches, lr, strict=True):
        phi = {silo: embedded(hubs[silo], shards[silo]) for silo in hubs}
        for group in [[silo] for silo in hubs] if sequential else [list(hubs)]:
            gradients = {row: gradient_at(row, phi, labels, loss) for row in labels}
            for silo in group:

                def objective(model, rows, silo=silo, gradient=gradients, phi=phi):
                    own = model(torch.stack([x[silo][row] for row in rows]))
                    if frozen:
                        return (own * torch.stack([gradient[row] for row in rows])).sum() / len(
                            rows
                        )
                    rest = [sum(phi[j][row] for j in hubs if j != silo) for row in rows]
                    return loss(own + torch.stack(rest), torch.stack([labels[r] for r in rows]))

                copies = [
                    steps(copy.deepcopy(hubs[silo]), objective, ids, rows, etas, prox)
                    for rows in shards[silo]
                ]
                average(hubs[silo], copies)
            for silo in group:
                phi[silo] = embedded(hubs[silo], shards[silo])
    return hubs


def gradient_at(row, phi, labels, loss):
    """The derivative of one row's loss by the sum of its embeddings."""
    z = sum(rows[row] for rows in phi.values())[None].requires_grad_()
    loss(z, labels[row][None]).backward()
    return z.grad[0]


def plain_splitnn(modules, top, holder, shards, labels, loss, minibatches, lr):
    """A top over the concatenation, one replica for each client of the label silo. One minibatch a
    round; the derivative is frozen for the Q steps of the others; the top takes one."""
    hubs, top = copy.deepcopy((modules, top))
    for ids, etas in zip(minibatches, lr, strict=True):
        phi = {silo: embedded(hubs[silo], shards[silo]) for silo in hubs}
        gradients, tops = {}, []
        for own in shards[holder]:
            tops.append(copy.deepcopy(top))
            rows = rows_of(ids, 0, own)
            if rows:
                z = torch.stack([torch.cat([phi[j][row] for j in hubs]) for row in rows])
                z.requires_grad_()
                optimiser = torch.optim.SGD(tops[-1].parameters(), lr=etas[0])
                loss(tops[-1](z), torch.stack([labels[row] for row in rows])).backward()
                optimiser.step()
                gradients |= dict(zip(rows, z.grad * len(rows), strict=True))
        average(top, tops)
        before = 0
        for silo, module in hubs.items():
            wide = len(next(iter(phi[silo].values())))
            copies = []
            for own in shards[silo]:
                copies.append(copy.deepcopy(module))
                rows = rows_of(ids, 0, own)
                for eta in etas if rows else []:
                    optimiser = torch.optim.SGD(copies[-1].parameters(), lr=eta)
                    optimiser.zero_grad()
                    back = torch.stack([gradients[row][before : before + wide] for row in rows])
                    copies[-1](torch.stack([own[row] for row in rows])).backward(back / len(rows))
                    optimiser.step()
            average(module, copies)
            before += wide
    return hubs, top


def plain_u_shape(blocks, middle, top, x, y, loss, minibatches, lr):
    """One client a silo, Q minibatches a round. All derivatives are of the round's start; the
    middle, like the blocks, pulls those back that it got, one minibatch after the other; the top
    takes the loss."""
    blocks, middle, top = copy.deepcopy((blocks, middle, top))
    for ids, etas in zip(minibatches, lr, strict=True):
        given = []
        for rows in ids:
            z = torch.cat([blocks[j](x[j][rows]) for j in blocks], 1).detach().requires_grad_()
            m = middle(z)
            total = loss(top(m), y[rows]) * len(rows)
            given.append((rows, z.detach(), m.detach(), *torch.autograd.grad(total, (z, m))))
        for (rows, z, m, by_joint, by_middle), eta in zip(given, etas, strict=True):
            step(top, loss(top(m), y[rows]), eta)
            step(middle, (middle(z) * by_middle).sum() / len(rows), eta)
            before = 0
            for j, block in blocks.items():
                own = block(x[j][rows])
                share = by_joint[:, before : before + own.shape[1]]
                step(block, (own * share).sum() / len(rows), eta)
                before += own.shape[1]
    return blocks, middle, top


def step(module, objective, eta):
    optimiser = torch.optim.SGD(module.parameters(), lr=eta)
    optimiser.zero_grad()
    objective.backward()
    optimiser.step()


def plain_fedprox(module, clients, labels, loss, minibatches, lr, mu):
    """FedAvg where mu is 0: clients weighted by their rows that were drawn."""
    hub = copy.deepcopy(module)
    for ids, etas in zip(minibatches, lr, strict=True):
        copies, weights = [], []
        for own in clients:

            def objective(model, rows, own=own):
                x, y = (torch.stack([of[row] for row in rows]) for of in (own, labels))
                return loss(model(x), y)

            copies.append(steps(copy.deepcopy(hub), objective, ids, own, etas, mu))
            weights.append(sum(len(rows_of(ids, q, own)) for q in range(len(ids))))
        average(hub, copies, weights)
    return hub
