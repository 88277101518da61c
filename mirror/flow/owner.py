"""Which of several mirrors of a flow copies: the others stand by.

The right belongs to the mirror that last called InitProducerId on the flow's transactional id. Every second
the holder asks the coordinator whether it still holds it.

The broker refuses a batch that does not continue the log. But a control marker is appended wherever the log
ends, and so is a batch at a broker that has forgotten the flow's producer, as it may at any time. So an
answer proves the right for a limited time only (:mod:`mirror.flow.turn`). A new holder first writes to the
flow's state, and then nothing for longer than that time. So while the state holds nothing of a new holder
the right is still ours, whatever the coordinator is doing. A new holder looks again at every partition that
it saw before it had the right (:mod:`mirror.flow.keeping`).

Sources: KIP-98 (InitProducerId), KIP-664 (DescribeTransactions), docs/design.md.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.turn import Turn
from mirror.kafka.cluster import Cluster
from mirror.kafka.transactions import MARKS, Token, current_token, init_producer_id, mark_of

log = structlog.get_logger(__name__)

CONFIRMED_FOR_SECONDS = 1.5
"""Longer than the time between two proofs; so short that markers land before a new holder begins."""
ASKED_FOR_SECONDS = 3.0
"""How long to wait for the coordinator's answer; then it is reported as unavailable and asked again."""
STATE_ASKED_FOR_SECONDS = 1.0
CLAIMED_FOR_SECONDS = 60.0
"""How long a claim that failed is repeated where a flow or a repair begins."""
TAKEOVER_WAIT_SECONDS = 2.5
"""How long a new holder writes nothing after its first write to the flow's state: by then the former holder's
last proof has expired.
"""


class Owner:
    """The right to copy one flow to one target.

    Attributes:
        token: What the coordinator gave us; None before the first :meth:`claim`.
        held: As far as we know, the right is still ours.
        seen: Who held it when the coordinator was last asked.
        turn: Whether anything may be sent, according to the last proof and when it was asked for.
        taken_over: Asks the flow's state whether a new holder has begun to write there; None if that cannot
            be asked.
    """

    def __init__(self, target: Cluster, flow: str) -> None:
        self.token: Token | None = None
        self.held = False
        self.seen: Token | None = None
        self.turn = Turn()
        self.taken_over: Callable[[], Awaitable[bool]] | None = None
        self.transactional_id = f"twinsite.{flow}"
        self._target = target
        self._confirmed_at = 0.0
        self._begun: tuple[int, int] | None = None
        self._outdated: tuple[int, int] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._mark = 0
        """Of our last claim; 0 before the first."""
        self._anothers: Token | None = None
        """The last token that was found to be another mirror's."""

    async def claim(self, *, new_flow: bool = False, patience_seconds: float = CLAIMED_FOR_SECONDS) -> Token:
        """Take the right from its holder. We may write TAKEOVER_WAIT_SECONDS after :meth:`begun`.

        Args:
            new_flow: The flow has no record yet. If nobody holds the right to it we may write at once.
            patience_seconds: How long a claim that failed is repeated, whoever has the right by then. 0: it
                is not.

        Raises:
            NotAuthorizedError: No WRITE on the transactional id.
            BrokerError, ConnectionFailedError: The coordinator cannot be asked.
        """
        unheld = new_flow and await current_token(self._target, self.transactional_id) is None
        asked_at = time.monotonic()
        token = await self._next_token(patience_seconds)
        # of several that found no holder only one gets epoch 0: the others take the right from it
        self._take(token, asked_at, first=unheld and token.epoch == 0)
        return token

    def _take(self, token: Token, asked_at: float, *, first: bool) -> None:
        self.token = token
        self.turn.since = asked_at if first else math.inf
        self._confirmed_at = asked_at
        self.held = True
        self.turn.proven(asked_at)
        reach("claimed")

    async def _next_token(self, timeout_seconds: float) -> Token:
        """A token that was never given out. A coordinator that lost its last records would repeat our own."""
        had, self._mark = self.token, 1 + secrets.randbelow(MARKS)
        while True:
            token = await init_producer_id(
                self._target, self.transactional_id, timeout_seconds=timeout_seconds, mark=self._mark
            )
            if had is None or token.producer_id != had.producer_id or token.epoch > had.epoch:
                return token

    def begun(self, writer: tuple[int, int]) -> None:
        """Note that this token has written to the flow's state, where the former holder can see it.

        Called again if that write was lost: the former holder may not have seen it, so the wait starts over.
        """
        if writer != self.token:
            return
        if self.turn.since == math.inf or self._begun == writer:
            self.turn.since = time.monotonic() + TAKEOVER_WAIT_SECONDS
        self._begun = writer

    def outdated(self, writer: tuple[int, int]) -> None:
        """Note that somebody else has written to the flow's state under this token, or a newer one.

        If the coordinator still says that this token is the last one, it has lost those it gave out since.
        """
        self._outdated = writer

    @property
    def may_write(self) -> bool:
        """Whether we hold the right and the wait after a takeover is over: until then the former holder may
        still write what it began.
        """
        return self.held and time.monotonic() >= self.turn.since

    @property
    def since(self) -> float:
        """From when on nobody else may write (monotonic seconds); while that is open, the earliest possible
        moment. What was seen before it may have changed since.
        """
        return min(self.turn.since, time.monotonic() + TAKEOVER_WAIT_SECONDS)

    async def confirm(self, timeout_seconds: float = ASKED_FOR_SECONDS) -> bool:
        """True when we hold the right now and may write. Takes it again if the coordinator has forgotten it.

        Raises:
            TwinsiteError: Neither the coordinator nor the flow's state can be asked; the coordinator's error.
        """
        if self._is_confirmed:
            return self.may_write
        try:
            ours = await self.ask(timeout_seconds)
            if self._is_confirmed or not ours:
                return ours
            raise ConnectionFailedError("the coordinator took too long to say who has the right to write")
        except TwinsiteError as failed:
            if self.taken_over is None:
                raise
            try:
                await self.ask_the_state()
            except TwinsiteError:
                raise failed from None
            return self.may_write

    @property
    def _is_confirmed(self) -> bool:
        return time.monotonic() - self._confirmed_at < CONFIRMED_FOR_SECONDS

    async def ask(self, timeout_seconds: float) -> bool:
        """Ask the coordinator, however recently it was asked; returns the same as :meth:`confirm`.

        Its answer counts only while we hold the right under the same token: meanwhile the flow's state may
        have shown that another mirror has it.

        Raises:
            TwinsiteError: It cannot be asked.
        """
        if not self.held:
            return False
        asked_at, token, outdated = time.monotonic(), self.token, self._outdated
        holder = await current_token(
            self._target, self.transactional_id, timeout_seconds=timeout_seconds, cut_off=True
        )
        self.seen = holder
        if holder is None or holder == token == outdated or await self.is_own(holder, timeout_seconds):
            await self._claim_again(token, asked_at + timeout_seconds)
        else:
            self._hear(token, asked_at, ours=holder == token)
        return self.may_write

    async def ask_the_state(self) -> None:
        """Find out from the flow's state whether somebody has taken the right and begun to write.

        Raises:
            TwinsiteError: The state cannot tell.
        """
        if not self.held or self.taken_over is None:
            return
        asked_at, token = time.monotonic(), self.token
        try:
            async with asyncio.timeout(STATE_ASKED_FOR_SECONDS):
                taken = await self.taken_over()
        except TimeoutError as late:
            words = f"the flow's state did not answer within {STATE_ASKED_FOR_SECONDS:g} s"
            raise ConnectionFailedError(words) from late
        self._hear(token, asked_at, ours=not taken)

    def _holds(self, token: Token | None) -> bool:
        """Whether the right is still ours under this token: it was neither lost nor claimed again."""
        return self.held and token == self.token

    def _hear(self, token: Token | None, asked_at: float, *, ours: bool) -> None:
        """Note whose the right was that we held under this token. Once lost, only a claim brings it back."""
        if not self._holds(token):
            return
        self.held, self._confirmed_at = ours, max(self._confirmed_at, asked_at)
        if ours:
            self.turn.proven(asked_at)
        else:
            self.turn.lost()

    async def _claim_again(self, forgotten: Token | None, until: float) -> None:
        """Claim again: the coordinator has forgotten the id, as after a week without use, or lost its last
        tokens. Of concurrent callers only the first claims. A claim that takes longer goes on: the
        coordinator may have given out a new token already.

        Args:
            until: How long to wait for the claim (monotonic seconds).

        Raises:
            TwinsiteError: The coordinator cannot be asked, or takes longer.
        """
        if self._claiming is None or self._claiming.done():
            self._claiming = asyncio.create_task(self._claim_unless_taken(forgotten))
            self._claiming.add_done_callback(_ended)
        claiming = self._claiming
        await asyncio.wait({claiming}, timeout=max(0.0, until - time.monotonic()))
        if not claiming.done():
            raise ConnectionFailedError("the coordinator takes too long to give out the right to write again")
        claiming.result()

    async def _claim_unless_taken(self, forgotten: Token | None) -> None:
        """Claim unless another mirror has the right by now. If there is no answer the claim is not repeated:
        before the next one it is asked again whose the right is.

        A token that comes when the right was lost, or claimed once more, is not used. If it came of our last
        claim, or its answer is lost, the right is claimed again (:meth:`is_own`).
        """
        if not self._holds(forgotten):
            return
        asked_at = time.monotonic()
        before = await current_token(
            self._target, self.transactional_id, timeout_seconds=ASKED_FOR_SECONDS, cut_off=True
        )
        if before is not None and before != forgotten and not await self.is_own(before):
            self.seen = before
            self._hear(forgotten, asked_at, ours=False)
        elif self._holds(forgotten):
            asked_at = time.monotonic()
            token = await self._next_token(0.0)
            if self._holds(forgotten):
                self._take(token, asked_at, first=False)
                log.warning("ownership_forgotten", transactional_id=self.transactional_id)

    async def is_own(self, holder: Token | None, timeout_seconds: float = ASKED_FOR_SECONDS) -> bool:
        """Whether the right went to a claim of ours of which we do not know the token: its answer was lost.
        Nobody does anything under that token, so the right is to be claimed again.

        Another mirror may have drawn the same mark. Then the right is taken from that one, but only once:
        each claim has a new mark.

        Raises:
            TwinsiteError: The coordinator cannot be asked.
        """
        if holder is None or holder in {self.token, self._anothers}:
            return False
        mark = await mark_of(self._target, self.transactional_id, holder, timeout_seconds=timeout_seconds)
        if mark != self._mark:
            self._anothers = holder
        return mark == self._mark

    async def holder(self) -> Token | None:
        """The token of the present holder of the right; None if the coordinator knows none.

        Raises:
            TwinsiteError: The coordinator cannot be asked.
        """
        self.seen = await current_token(
            self._target, self.transactional_id, timeout_seconds=ASKED_FOR_SECONDS, cut_off=True
        )
        return self.seen


def _ended(claim: asyncio.Task[None]) -> None:
    """Retrieve the error of a claim for which nobody may wait any more, so that asyncio does not warn."""
    if not claim.cancelled():
        claim.exception()
