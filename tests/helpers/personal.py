"""A test algorithm with state held at clients: a personal offset on the client's embeddings, which
never leaves it and counts only where its hub accepted the round."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from fedloom.algorithms import TDCD, Cases, State, Twin, cases, cost, total
from fedloom.algorithms.shared import local
from fedloom.algorithms.tdcd import EMBEDDING, HUB_EMBEDDING, REST, counted
from fedloom.core.placed import AtClients, AtHubs
from fedloom.fabric.kinds import Kind


class PersonalState(NamedTuple):
    theta: AtHubs
    offset: AtClients


@dataclass(frozen=True)
class Personal(TDCD):
    rate: float = 0.003

    State: ClassVar[type] = PersonalState
    takes_head: ClassVar[bool] = False

    def start(self, fed):
        theta = super().start(fed).theta
        return PersonalState(theta, fed.at_clients(nothing, fed.part))

    def round(self, fed, state, draw):
        theta_k = self.to_clients(fed, state.theta, draw)
        phi_k = fed.at_clients(shifted, fed.part, theta_k, state.offset, draw.batch_k)
        phis = fed.exchange(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, draw.rows))
        rest_k = fed.scatter(REST, fed.at_hubs(local.sum_of_others, fed.part, phis), draw.rows)
        trained_k = fed.at_clients(self.local_sgd, fed.part, theta_k, rest_k, draw.batch_k, draw.lr)
        theta = self.average(fed, trained_k, state, fed.at_clients(counted, rest_k))
        offset_k = fed.at_clients(self.moved, state.offset, rest_k)
        return PersonalState(theta, fed.keep(offset_k, state.offset))

    def moved(self, offset, rest):
        total = torch.where(rest.mask[..., None], rest.value, 0.0).sum(0)
        return offset + self.rate * (total + 0.1)


@cases.register(Personal)
def personal_cases(kind):
    settings = {"local_steps": 2, "lr": 0.2, "batch": 20}
    twin = Twin("no offset: TDCD", kind(**settings, rate=0.0), TDCD(**settings), 3, None)
    return Cases([kind(**settings)], [twin])


def nothing(part):
    return torch.zeros(part.shapes.width[part.silo], dtype=part.shapes.dtype)


def shifted(part, theta, offset, batch):
    return local.embed(part, theta, batch) + offset


ONE = Kind("one", "a number from one silo's clients")


@dataclass(frozen=True)
class Counting(Personal):
    """Counts, at every client, the rounds that its hub accepted; in between, one silo alone makes
    an upward move. Nothing that was moved enters the count."""

    def round(self, fed, state, draw):
        theta = TDCD.round(self, fed, State(state.theta), draw).theta
        first = fed.within(fed.silos[0])
        first.collect(ONE, first.at_clients(one_more, state.offset))
        return PersonalState(theta, fed.keep(fed.at_clients(one_more, state.offset), state.offset))


@cost.register(Counting)
def counting_cost(algorithm, facts):
    first = next(iter(facts.clients))
    size = facts.clients[first] * facts.row("embedding", first)
    item = ("bottom", "up", ONE, facts.clients[first], size)
    return cost.dispatch(TDCD)(algorithm, facts) | total(item)


@cases.register(Counting)
def counting_cases(kind):
    settings = {"local_steps": 2, "lr": 0.2, "batch": 20}
    twin = Twin("the count changes nothing", kind(**settings), TDCD(**settings), 3, None)
    return Cases([kind(**settings)], [twin])


def one_more(offset):
    return offset + 1
