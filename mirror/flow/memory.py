"""The flow's durable state at the target, as the parts of the flow ask for it.

Every answer comes from what is durable there: a change is written first and remembered afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.insertions import Inserted, Insertions, LogMap
from checkpoint.model import FlowRecord, Insertion, OwnerRecord, PartitionRecord
from checkpoint.offset_map import OffsetMap
from mirror.errors import ExitCode, TwinsiteError, UsageError
from mirror.failpoints import Write
from mirror.flow.facts import Known
from mirror.flow.position import Register
from mirror.model import OffsetMode, TopicPartition


class AnotherClusterError(TwinsiteError):
    """The flow's state was written for other clusters than the ones reached."""

    exit_code = ExitCode.REFUSED
    hint = "check the addresses, or give the flow another name"


class OtherNamesError(UsageError):
    """The flow copied topics under other names than the settings give them now."""

    hint = "restore topics.names and topics.prefix, or copy everything again in a flow of another name"


class FlowMemory:
    """The durable state of one flow. Implements what the settler and the keeper ask for.

    Methods that read or write the state raise what :class:`FlowState` raises.

    Args:
        fenced: Counts the writes to it that were refused because of a newer epoch.
        cut_short: Whether it has lost something that the next write will write again.
        news_at: When something that was new in it was last read (monotonic seconds).
    """

    def __init__(
        self,
        state: FlowState,
        *,
        fenced: Callable[[], int] = int,
        cut_short: Callable[[], bool] = bool,
        news_at: Callable[[], float] = float,
    ) -> None:
        self.fenced = fenced
        self.cut_short = cut_short
        self.news_at = news_at
        self._state = state

    async def introduce(
        self,
        producer_id: int,
        source_cluster_id: str,
        target_cluster_id: str,
        topic_prefix: str | None = None,
    ) -> None:
        """Write the flow's own record the first time; after that check that the clusters are the same.

        Args:
            topic_prefix: Of the names of copies. Mirrors that read the target learn it before the first copy.

        Raises:
            AnotherClusterError: The state was written for another source or target.
        """
        known = self._state.flow
        if known is None:
            record = FlowRecord(
                producer_id=producer_id,
                producer_epoch=0,
                source_cluster_id=source_cluster_id,
                target_cluster_id=target_cluster_id,
                created_at_ms=int(time.time() * 1000),
                topic_prefix=topic_prefix,
            )
            await self._state.save_flow(record)
        else:
            self.check_clusters(source_cluster_id, target_cluster_id)

    def check_clusters(self, source_cluster_id: str, target_cluster_id: str) -> None:
        """Check that a flow that has begun still copies between the same clusters.

        Raises:
            AnotherClusterError: The state was written for another source or target.
        """
        known = self._state.flow
        now = source_cluster_id, target_cluster_id
        if known is not None and (known.source_cluster_id, known.target_cluster_id) != now:
            raise AnotherClusterError(
                f"the flow was created for source cluster {known.source_cluster_id} and target cluster "
                f"{known.target_cluster_id}, but {source_cluster_id} and {target_cluster_id} were reached"
            )

    def check_names(self, to_target: Callable[[str], str]) -> None:
        """Check that topics keep their target topics: a position in one topic means nothing in another.

        Raises:
            OtherNamesError: A topic would be copied to another target topic.
        """
        for record in self._state.partitions.values():
            now = to_target(record.topic)
            if record.target_topic != now:
                raise OtherNamesError(
                    f"the flow copies topic {record.topic} to {record.target_topic}; "
                    f"with these settings it would continue in {now}"
                )

    @property
    def topic_ids(self) -> Mapping[TopicPartition, str]:
        """The id of the source topic of each partition that the flow has begun and not forgotten."""
        return {tp: record.topic_id for tp, record in self._state.partitions.items()}

    @property
    def introduced(self) -> bool:
        """True when the flow has a record of its own."""
        return self._state.flow is not None

    @property
    def unwritten_since(self) -> float | None:
        """When a state that lacks the flow's own record was last seen to change (monotonic seconds); None if
        that record is there, or if nothing was read yet.
        """
        return self._state.unwritten_since

    async def refresh(self, *, sole_writer: bool) -> None:
        """Read everything again, unless we are the only writer and none of our writes has failed."""
        if not (sole_writer and self._state.in_step):
            await self._state.load()

    @property
    def owner(self) -> OwnerRecord | None:
        """Where the owner says it runs; None if nobody says so."""
        return self._state.owner

    async def note_owner(self, record: OwnerRecord | None) -> None:
        """Write where the owner runs; None withdraws that."""
        await self._state.save_owner(record)

    @property
    def producer_id(self) -> int:
        return self._flow.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._flow.producer_epoch

    @property
    def _flow(self) -> FlowRecord:
        assert self._state.flow is not None, "introduce() comes first"
        return self._state.flow

    # -- for the settler -------------------------------------------------------------------------

    def known(self, tp: TopicPartition) -> Known | None:
        """What is known of a partition; None if nothing is."""
        record = self._state.partition(tp)
        return None if record is None else self._known(record, self._state.map(tp))

    def known_mapped(self, tp: TopicPartition, inserted: Sequence[Inserted]) -> Known:
        """What would be known of a partition if it were mapped and had these insertions too."""
        record = self._record(tp)
        offsets = self._state.map(tp) or OffsetMap([(record.start_offset, record.target_start_offset)])
        return self._known(replace(record, mode=OffsetMode.MAPPED).with_inserted(*inserted), offsets)

    def _known(self, record: PartitionRecord, offsets: OffsetMap | None) -> Known:
        insertions = Insertions(record.inserted)
        return Known(
            topic_id=record.topic_id,
            mode=record.mode,
            start_offset=record.start_offset,
            prepared=record.prepared,
            to_source=_same if offsets is None else LogMap(offsets, insertions).position,
            loss_accepted=(record.loss_accepted_from, record.loss_accepted_to),
            target_start_offset=record.target_start_offset,
            target_topic=record.target_topic,
            target_topic_id=record.target_topic_id,
            shared=record.shared,
            insertions=insertions,
            epoch_before=record.epoch_before,
            insertion=self._state.insertion(record.tp),
            producer_epoch=max(record.producer_epoch, self.producer_epoch if self._state.flow else 0),
        )

    def epoch_at(self, tp: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record below ``next_offset``, -1 when not known."""
        record = self._state.partition(tp)
        return record.epoch_before(next_offset) if record else -1

    async def register(
        self,
        tp: TopicPartition,
        target: TopicPartition,
        topic_id: str,
        what: Register,
        target_topic_id: str | None = None,
    ) -> None:
        """Note durably how a partition begins; if it is mapped, with the first run of its offset map.

        Args:
            topic_id: Of the source topic.
            target_topic_id: Of the topic that is written to; None if not known.
        """
        record = PartitionRecord(
            topic=tp.topic,
            partition=tp.partition,
            topic_id=topic_id,
            target_topic=target.topic,
            mode=what.mode,
            prepared=what.prepared,
            start_offset=what.start_offset,
            target_start_offset=what.target_start_offset,
            shared=what.shared,
            target_topic_id=target_topic_id,
        )
        mapped = what.mode is OffsetMode.MAPPED
        await self._state.begin(record, [(what.start_offset, what.target_start_offset)] if mapped else ())

    async def take_back(self, tp: TopicPartition) -> None:
        """Forget durably that a partition was begun. Call it only while nothing of it was copied."""
        await self._state.take_back(tp)

    async def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget durably all about partitions that neither side has any more, lost ranges included."""
        await self._state.forget(tps)

    async def note_targets(self, target_topic_ids: Mapping[TopicPartition, str]) -> None:
        """Note durably the ids of the target topics, per source partition."""
        await self._state.update_partitions(
            Write.TARGETS_NOTED,
            {
                tp: partial(replace, target_topic_id=target_topic_id)
                for tp, target_topic_id in target_topic_ids.items()
            },
        )

    async def prepared(self, tp: TopicPartition) -> None:
        """Note durably that the target partition has been made to start where it should."""
        await self._state.update_partitions(
            Write.PREPARED, {tp: lambda record: replace(record, prepared=True)}
        )

    async def note_loss(self, tp: TopicPartition, lost_from: int, lost_to: int) -> None:
        """Add the source offsets ``[lost_from, lost_to)`` to the ledger of accepted losses."""
        await self._state.update_partitions(
            Write.LOSS_NOTED, {tp: lambda record: record.with_loss(lost_from, lost_to)}
        )

    async def accept_loss(self, tp: TopicPartition, begin: int, end: int) -> None:
        """Note that an operator accepts the loss of the source offsets ``[begin, end)``."""

        def accepting(record: PartitionRecord) -> PartitionRecord:
            return replace(record, loss_accepted_from=begin, loss_accepted_to=end)

        await self._state.update_partitions(Write.LOSS_ACCEPTED, {tp: accepting})

    # -- for the keeper --------------------------------------------------------------------------

    async def note_epochs(self, epochs: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Note leader epochs, (epoch, first offset), per source partition."""
        await self._state.update_partitions(
            Write.EPOCH_NOTED,
            {tp: partial(PartitionRecord.with_epochs, epochs=tuple(pairs)) for tp, pairs in epochs.items()},
        )

    def runs_after(self, tp: TopicPartition, target_offset: int) -> Sequence[tuple[int, int]]:
        """The (source offset, target offset) runs that begin beyond a target offset, the first AHEAD_RUNS."""
        offsets = self._state.map(tp)
        return () if offsets is None else LogMap(offsets, self._insertions(tp)).runs_after(target_offset)

    async def drop_runs(self, tp: TopicPartition, target_offset: int) -> None:
        """Forget the runs that begin beyond a target offset; one that begins exactly there stays."""
        await self._state.drop_ahead(tp, self._insertions(tp).dense(target_offset))

    async def note_runs(self, runs: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Add (source offset, target offset) runs to offset maps."""
        dense = {
            tp: [(source, self._insertions(tp).dense(target)) for source, target in added]
            for tp, added in runs.items()
        }
        await self._state.extend_maps(dense)

    def may_forget(self, tp: TopicPartition) -> bool:
        """True when the offset map of a partition is long enough to be shortened."""
        return self._state.may_forget(tp)

    async def forget_below(self, target_log_starts: Mapping[TopicPartition, int]) -> None:
        """Shorten offset maps by what is below the start of the target's logs, per source partition."""
        starts = target_log_starts.items()
        await self._state.forget_below({tp: self._insertions(tp).dense(start) for tp, start in starts})

    def _insertions(self, tp: TopicPartition) -> Insertions:
        record = self._state.partition(tp)
        return Insertions(record.inserted if record else ())

    def _record(self, tp: TopicPartition) -> PartitionRecord:
        record = self._state.partition(tp)
        assert record is not None, f"{tp} is not registered"
        return record

    async def become_mapped(self, tp: TopicPartition) -> None:
        """Turn a partition with the same offsets into a mapped one, from its first record on.

        A partition that is mapped already is left as it is.
        """
        record = self._record(tp)
        if record.mode is OffsetMode.MAPPED:
            return
        first = (record.start_offset, record.target_start_offset)
        await self._state.turn_to_mapped(replace(record, mode=OffsetMode.MAPPED), [first])

    # -- for a repair ----------------------------------------------------------------------------

    async def begin_insertion(self, tp: TopicPartition, insertion: Insertion) -> None:
        """Note what a repair is about to append to a partition."""
        await self._state.begin_insertion(tp, insertion)

    async def end_insertion(
        self,
        tp: TopicPartition,
        insertion: Insertion,
        stands: Sequence[Inserted],
        following: Insertion | None = None,
    ) -> None:
        """Note what became of an insertion.

        Args:
            stands: The target ranges that hold no copies, its own among them; empty if it will never stand.
            following: The insertion that is about to be appended next.
        """
        await self._state.end_insertion(tp, insertion, stands, following)

    async def note_inserted(self, tp: TopicPartition, ranges: Sequence[Inserted]) -> None:
        """Note target ranges that hold no copies: the copy continues after them as if they were not there."""
        await self._state.update_partitions(
            Write.FOREIGN_NOTED, {tp: lambda record: record.with_inserted(*ranges)}
        )

    async def note_accepted(self, tp: TopicPartition, ranges: Sequence[Inserted]) -> None:
        """Accept that target ranges differ from the source: they are no longer compared."""
        await self._state.update_partitions(
            Write.DIFFERENCE_ACCEPTED, {tp: lambda record: record.with_accepted(*ranges)}
        )

    # -- for people ------------------------------------------------------------------------------

    def lost_ranges(self, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Source ranges [from, to) of a partition that were given up."""
        record = self._state.partition(tp)
        return record.lost if record else ()

    def translate(
        self, tp: TopicPartition, offset: int, *, reverse: bool, target_log_end: int, committed: bool = False
    ) -> int:
        """The offset of the same record on the other side.

        Args:
            reverse: From target to source.
            committed: The offset is one that a group has committed, the next one it reads. So it may be the
                end of the log, or hold no record: the group goes on with the next record.

        Raises:
            UntranslatableError: It has no exact counterpart, or is not copied yet; the error says why.
        """
        record = self._state.partition(tp)
        if record is None:
            raise UntranslatableError(f"{tp} has not been copied yet")
        begun = OffsetMap([(record.start_offset, record.target_start_offset)])
        offsets = LogMap(self._state.map(tp) or begun, Insertions(record.inserted))
        if committed:
            to_source, to_target = offsets.committed_to_source, offsets.committed_to_target
        else:
            to_source, to_target = offsets.source_of, offsets.target_of
        return (to_source if reverse else to_target)(offset, target_log_end)


def _same(target_log_end: int) -> int:
    return target_log_end
