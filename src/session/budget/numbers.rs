//! The numbers of "memory" in a report: names, units, meanings and places.

use super::MemoryStats;
use crate::session::metrics::Field;

macro_rules! numbers {
    ($($unit:ident $name:ident = $($place:ident).+: $meaning:literal,)*) => {
        impl MemoryStats {
            /// Every number in the order of the report.
            pub const FIELDS: &[Field] =
                &[$(Field { name: stringify!($name), unit: stringify!($unit), meaning: $meaning }),*];

            /// Name and value of every number, in the order of the report.
            pub(in crate::session) fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$($place).+)),*].into_iter()
            }
        }
    };
}

numbers! {
    bytes budget_bytes = budget_bytes: "the budget",
    tokens raw_tokens = raw_tokens: "of a chat that half of the budget holds at least, raw; 0 before the first begin",
    tokens quantised_tokens = quantised_tokens: "of a chat that the budget holds at least in 8 and 4 bits, likewise",
    bytes bytes = bytes: "raw_bytes + block_bytes + working_bytes",
    bytes raw_bytes = raw_bytes: "raw tokens in the host's buffers, with padding; of a loaded layer before its begin, without",
    bytes block_bytes = block_bytes: "blocks, and what is known of those in the file",
    bytes working_bytes = working_bytes: "working memory of begin and attend",
    bytes file_bytes = file_bytes: "length of the file",
    tokens file_tokens = file_tokens: "only in the file, over all layers; that of one of n KV heads counts 1 / n",
    tokens dropped_tokens = dropped_tokens: "dropped since the resets, likewise",
    count reads = reads.read: "heads of blocks that steps have read from the file",
    count late_reads = reads.late: "heads of blocks that came too late for a step",
    count returned = returned: "heads of blocks that came back to stay",
    bytes written_bytes = written_bytes: "written to the file",
    count failed_writes = failed_writes: "writes that failed, or had no room in kv_memory_file_mb",
    count failed_reads = reads.failed: "reads that failed",
    count lost = lost: "heads of blocks that the file had no more",
    count over_steps = over_steps: "steps of up to 16 tokens that ended above the share of their layer; a chunk of more may",
    ns wait_ns = reads.wait_ns: "that attending threads waited for the file",
}
