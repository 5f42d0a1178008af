# SPDX-License-Identifier: Apache-2.0
"""clients.py - the crowd itself: one process, one event loop, N clients that draw one behaviour after another from a seed.

Standard input is one JSON object: {"port", "clients", "seconds", "seed", "patience_s", "body_max", "tokens_share", "pauses", "known"}.
When the time is over all connections are cut at once, wherever they are. Prints {"requests", "behaviours", "statuses", "mistakes",
"examples", "processor_s"}.
"""
import asyncio
import collections
import json
import random
import resource
import sys

from by_class import WEIGHTS
from wire import Ended, Mistake

BEHAVIOUR_S = 480  # none takes longer unless somebody hangs
BACKGROUND = 3  # times the patience: how long who belongs to the background waits, or may


class Client:
    """One of the crowd, and what its behaviours share."""

    def __init__(self, crowd, number):
        self.crowd = crowd
        self.port = crowd.settings["port"]
        self.seconds = crowd.settings["seconds"]
        self.patience = crowd.settings["patience_s"]
        self.body_max = crowd.settings["body_max"]
        self.statuses = crowd.statuses
        self.random = random.Random(f"{crowd.settings['seed']}/{number}")
        self.told_to_wait = 0

    def known(self, kind):
        """A request whose answer is known: {"body", "text"}."""
        return self.random.choice(self.crowd.settings["known"][kind])

    def tokens(self, n):
        return max(2, int(n * self.crowd.settings["tokens_share"]))

    def count(self, answer):
        self.statuses[str(answer.status)] += 1

    async def within(self, waits):
        """For the background, too. Of reactive answers the server's own clock says how long they waited (behaviours.py)."""
        try:
            return await asyncio.wait_for(waits, BACKGROUND * self.patience)
        except asyncio.TimeoutError:
            raise Mistake(f"nothing for {BACKGROUND * self.patience} s") from None

    async def ended(self, wire, otherwise):
        """What still comes until the server ends the connection, which it must do soon."""
        try:
            return await asyncio.wait_for(wire.wait_end(), self.patience / 6)
        except asyncio.TimeoutError:
            raise Mistake(f"{otherwise} (after {self.patience / 6:.0f} s)") from None

    async def live(self):
        behaviours, weights = list(WEIGHTS), list(WEIGHTS.values())
        await asyncio.sleep(self.random.uniform(0, 1))
        while True:
            behaviour = self.random.choices(behaviours, weights)[0]
            name = behaviour.__name__
            self.crowd.behaviours[name] += 1
            try:
                await asyncio.wait_for(behaviour(self), BEHAVIOUR_S)
            except Mistake as mistake:
                self.crowd.mistake(f"{name}: {mistake}")
            except asyncio.TimeoutError:
                self.crowd.mistake(f"{name}: hangs for {BEHAVIOUR_S} s")
            except Ended as error:  # where it is fine the behaviour takes it itself
                self.crowd.mistake(f"{name}: the server ended the connection ({error})")
            except (OSError, KeyError, TypeError, ValueError, IndexError) as error:  # an answer of another shape
                self.crowd.mistake(f"{name}: {type(error).__name__}: {error}")
            pause = self.told_to_wait * self.random.uniform(0.5, 1.5) + self.random.uniform(0.05, 0.4)
            await asyncio.sleep(self.crowd.settings["pauses"] * pause)
            self.told_to_wait = 0


class Crowd:
    def __init__(self, settings):
        self.settings = settings
        self.behaviours = collections.Counter()
        self.statuses = collections.Counter()
        self.mistakes = collections.Counter()

    def mistake(self, text):
        self.mistakes[text[:300]] += 1

    async def run(self):
        tasks = [asyncio.create_task(Client(self, i).live()) for i in range(self.settings["clients"])]
        done, _ = await asyncio.wait(tasks, timeout=self.settings["seconds"])
        for task in done:
            self.mistake(f"a client ended by itself: {task.exception()!r}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main():
    crowd = Crowd(json.load(sys.stdin))
    asyncio.run(crowd.run())
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "requests": sum(crowd.behaviours.values()), "behaviours": crowd.behaviours, "statuses": crowd.statuses,
        "mistakes": sum(crowd.mistakes.values()), "examples": crowd.mistakes.most_common(30),
        "processor_s": round(used.ru_utime + used.ru_stime, 1)}))


if __name__ == "__main__":
    main()
