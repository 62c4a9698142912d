//! Counters of recall, of a layer and of all.

use super::Recall;

/// Counters of the tier `file` of one layer since the session was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileCounts {
    /// Bytes of blocks that were written to a file.
    pub written_bytes: u64,
    /// Bytes of blocks that were read from it.
    pub read_bytes: u64,
    /// Writes that were put off, since a call had the snapshot.
    pub late_writes: u64,
    /// Writes that failed. Their blocks stay in memory.
    pub failed_writes: u64,
    /// Reads that failed, or whose bytes were others than were written.
    pub failed_reads: u64,
}

/// Counters of one layer since the session was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecallCounts {
    /// Blocks that left the cache.
    pub left: u64,
    /// Blocks that came back.
    pub returned: u64,
    /// Blocks that were encoded.
    pub parked: u64,
    /// Blocks that could not be parked, read or judged, and stayed where they were.
    pub failed: u64,
    /// Query rows that blocks were judged by.
    pub rows: u64,
    /// Steps that ended above the limit.
    pub over_steps: u64,
    /// Counters of the tier `file`.
    pub file: FileCounts,
    /// Time in begin.
    pub begin_ns: u64,
    /// Time in end.
    pub end_ns: u64,
}

/// The result of [`Session::recall_stats`](super::Session::recall_stats).
#[derive(Clone, Copy, Debug, Default)]
pub struct RecallStats {
    /// Tokens of the chat that are not in the cache.
    pub away_tokens: u64,
    /// Those of them that the file has no more: they cannot come back.
    pub lost_tokens: u64,
    /// Tokens of the chat, in the cache or not, that a file has.
    pub file_tokens: u64,
    /// Bytes of memory of parked copies.
    pub parked_bytes: u64,
    /// Bytes of summaries, and of the shares that queries gave.
    pub summary_bytes: u64,
    /// Counters.
    pub counts: RecallCounts,
}

impl RecallStats {
    /// The sum over layers.
    pub(in crate::session) fn total<'a>(layers: impl Iterator<Item = &'a Recall>) -> Self {
        let mut sum = RecallStats::default();
        layers.for_each(|recall| sum.add(&recall.stats()));
        sum
    }

    /// Adds those of another layer.
    fn add(&mut self, other: &RecallStats) {
        self.away_tokens += other.away_tokens;
        self.lost_tokens += other.lost_tokens;
        self.file_tokens += other.file_tokens;
        self.parked_bytes += other.parked_bytes;
        self.summary_bytes += other.summary_bytes;
        let (sum, more) = (&mut self.counts, &other.counts);
        sum.left += more.left;
        sum.returned += more.returned;
        sum.parked += more.parked;
        sum.failed += more.failed;
        sum.rows += more.rows;
        sum.over_steps += more.over_steps;
        sum.file.written_bytes += more.file.written_bytes;
        sum.file.read_bytes += more.file.read_bytes;
        sum.file.late_writes += more.file.late_writes;
        sum.file.failed_writes += more.file.failed_writes;
        sum.file.failed_reads += more.file.failed_reads;
        sum.begin_ns += more.begin_ns;
        sum.end_ns += more.end_ns;
    }
}
