//! Query heads that share a KV head, summed together; and parts of rows.

use super::attention::OwnedSums;
use super::chat::Chat;
use crate::common::Random;
use crate::h2o::SumFields;
use crate::host::packing::flash;
use crate::status::Status;
use serde_json::json;

const HEADS: usize = 16;

/// A chat whose heads come in groups of `group`.
struct Grouped {
    chat: Chat,
    group: usize,
}

impl Grouped {
    fn new(group: usize, prefill_queries: i32) -> Self {
        let config = json!({
            "kv_h2o_prefill_queries": prefill_queries,
            "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8,
            "kv_h2o_sink_tokens": 8,
            "kv_h2o_recent_tokens": 16, "kv_h2o_trigger_min_tokens": 64, "kv_h2o_update_interval": 4,
            "kv_h2o_target_lossy_ratio": 2.0,
        });
        Grouped { chat: Chat::new(config, 1, flash(1, 1, 4, 512)), group }
    }

    /// Begins a step and appends its tokens.
    fn begin(&mut self, rows: usize) {
        self.chat.begin(0);
        self.chat.hosts[0].append(rows);
    }

    fn end(&mut self, heads: usize, rows: usize) -> Result<(), Status> {
        self.chat.close(0, heads, rows).map_err(|error| error.status())
    }

    /// Attention of a step: `[head][row][token]`.
    fn send(&self, attention: &[Vec<f64>]) {
        let rows = attention.len() / HEADS;
        let scored = self.chat.session.scored_rows(0, rows as u32).unwrap();
        if scored.rows == 0 {
            return;
        }
        for group in attention.chunks(self.group * rows) {
            let last = |head: &[Vec<f64>]| head[rows - scored.rows as usize..].to_vec();
            let counted: Vec<Vec<f64>> = group.chunks(rows).flat_map(last).collect();
            let sums = OwnedSums::of_heads(self.group as u32, scored.block_tokens, &counted);
            self.chat.session.block_sums(0, 0, &sums).unwrap();
        }
    }
}

#[test]
fn a_group_of_heads_may_be_summed_together() {
    let random = &mut Random::new(11);
    let mut chats = [1, 2, HEADS].map(|group| Grouped::new(group, 0));
    for chat in &mut chats {
        chat.begin(100);
        chat.end(HEADS, 100).unwrap();
    }
    for _ in 0..120 {
        chats.iter_mut().for_each(|chat| chat.begin(1));
        let len = chats[0].chat.hosts[0].len();
        let attention: Vec<Vec<f64>> = (0..HEADS).map(|_| (0..len).map(|_| random.unit() + 1e-3).collect()).collect();
        for chat in &mut chats {
            chat.send(&attention);
            assert_eq!(chat.end(HEADS + 1, 1), Err(Status::InvalidArgument), "a head is missing");
            assert_eq!(chat.end(HEADS, 2), Err(Status::InvalidArgument), "a row is missing");
            chat.end(HEADS, 1).unwrap();
        }
        let positions = chats.each_ref().map(|chat| chat.chat.positions(0));
        assert!(positions[0] == positions[1] && positions[0] == positions[2], "{positions:?}");
    }
    let metrics = chats[0].chat.metrics(0);
    assert!(metrics.h2o_total_evict_tokens > 40.0 && metrics.h2o_plan_count > 5.0, "{metrics:?}");
}

#[test]
fn parts_of_split_rows_must_have_each_token_once() {
    let mut grouped = Grouped::new(1, 0);
    grouped.begin(100);
    grouped.end(HEADS, 100).unwrap();
    const END: u32 = u32::MAX;
    let (a, b, c) = ((1, 0, 20), (0, 20, 40), (2, 40, END));
    for (parts, is_whole) in [
        (vec![a, c], false),
        (vec![a, b], false),
        (vec![b, c], false),
        (vec![b], false),
        (vec![a, b, b, c], false),
        (vec![a, b, c, c], false),
        (vec![a, b, (2, 39, END)], false),
        (vec![a, (0, 0, 20), c], false),
        (vec![a, (0, 40, 60), (0, 40, 60), (2, 60, END)], false),
        (vec![(3, 0, END), b], false),
        (vec![(3, 0, END)], true),
        (vec![c, a, b], true),
    ] {
        grouped.begin(1);
        let (rows, len) = (HEADS as u32, grouped.chat.hosts[0].len());
        for (flags, token_begin, token_end) in parts.iter().copied() {
            let token_end = token_end.min(len);
            let fields = SumFields { flags, heads: rows, rows, block_tokens: 8, blocks: 20, token_begin, token_end };
            let sums = vec![0.01; fields.check().unwrap()];
            let sums = OwnedSums { fields, sums, factors: vec![1.0; HEADS] };
            grouped.chat.session.block_sums(0, 0, &sums).unwrap();
        }
        let ended = grouped.end(HEADS, 1);
        assert_eq!(ended, if is_whole { Ok(()) } else { Err(Status::InvalidArgument) }, "{parts:?}");
        if !is_whole {
            grouped.chat.close(0, 0, 0).unwrap();
        }
    }
}

/// Rows of a step make a prompt, not those of its heads: 16 heads of 5 drafts are 80 rows.
#[test]
fn steps_of_many_heads_and_few_rows_are_no_prompts_and_prompts_may_come_in_groups() {
    for prefill_queries in [0, 3, -1] {
        let random = &mut Random::new(12);
        let mut chats = [1, 4, HEADS].map(|group| Grouped::new(group, prefill_queries));
        let mut evicted = false;
        for step in 0..60 {
            let rows = [100, 5, 1, 7, 5, 70][if step == 0 { 0 } else { 1 + step % 5 }];
            chats.iter_mut().for_each(|chat| chat.begin(rows));
            let len = chats[0].chat.hosts[0].len();
            let some = |_| (0..len).map(|_| random.unit() + 1e-3).collect();
            let attention: Vec<Vec<f64>> = (0..HEADS * rows).map(some).collect();
            for chat in &mut chats {
                chat.send(&attention);
                chat.end(HEADS, rows).unwrap();
            }
            let positions: Vec<_> = chats.iter().map(|chat| chat.chat.positions(0)).collect();
            assert!(positions.iter().all(|others| *others == positions[0]), "step {step}: {positions:?}");
            evicted |= positions[0].len() > 1;
            if len > 380 {
                for chat in &mut chats {
                    chat.chat.session.reset(None).unwrap();
                    chat.chat.hosts[0].tokens.clear();
                }
            }
        }
        assert!(evicted);
    }
}
