"""VAFL and asynchronous split learning as a plain loop over torch modules, one client a silo: no
fabric, no engine. Written from the papers; driven by a given order of visits."""

from collections import Counter

import torch


def rows_of(streams, size, batch, round, nth):
    """The minibatch of a silo's n-th visit of a round."""
    return torch.from_numpy(streams.common("minibatch", round, nth).sample(size, batch))


def plain_visits(
    models, head, x, y, loss, order, ids_of, *, lr, master_lr, q=1, l2=0.0, oldest=None
):
    """Changes `models` and `head` in place; `order`: for each round, who comes in each turn; `lr`
    and `master_lr`: of the steps so far, of which a turn has q. Gives the delays tau of all
    embeddings of others that were used, and who was called again."""
    table = {m: model(x[m]).detach() for m, model in models.items()}
    sent = {m: torch.full((len(y),), -1) for m in models}
    taus, calls, k = [], [], 0

    def fresh(m, rows):
        table[m][rows], sent[m][rows] = models[m](x[m][rows]).detach(), k

    for round, turns in enumerate(order):
        seen = Counter()
        for visitors in turns:
            rows = {m: ids_of(round, seen[m]) for m in visitors}
            for m in visitors:
                fresh(m, rows[m])
            if oldest is not None:
                others = {m: [rows[j] for j in visitors if j != m] for m in models}
                for m in models:  # called once, for the rows of all the others
                    if any((k - sent[m][row] > oldest).any() for row in others[m]):
                        calls.append(m)
                        for row in others[m]:
                            fresh(m, row)
            gradients, steps = {}, []
            for m in visitors:
                taus += [k - sent[o][rows[m]] for o in models if o != m]
                h = {o: table[o][rows[m]].clone() for o in models}
                h[m].requires_grad_()
                per_row = loss(head(h), y[rows[m]])
                wanted = [h[m], *head.parameters()]
                gradient, *down = torch.autograd.grad(per_row.sum(), wanted)
                gradients[m] = gradient
                steps.append([g / len(per_row) for g in down])
            with torch.no_grad():
                for p, *down in zip(head.parameters(), *steps, strict=True):
                    p -= master_lr(k * q) * sum(down) / len(down)
            for m in visitors:
                for step in range(q):
                    now = lr(k * q + step)
                    optimizer = torch.optim.SGD(models[m].parameters(), lr=now, weight_decay=l2)
                    optimizer.zero_grad()
                    h = models[m](x[m][rows[m]])
                    h.backward(gradients[m] / len(h))
                    optimizer.step()
            seen.update(visitors)
            k += 1
    return torch.cat(taus), calls
