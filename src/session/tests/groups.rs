//! Query heads that share a KV head, handed over as rows of one tile.

use super::random::Random;
use super::shared::Session;
use crate::dtype::Dtype;
use crate::h2o::Tile;
use crate::layout::{Layout, Spec};
use crate::status::Status;
use crate::store::Cache;
use serde_json::json;

const HEADS: usize = 16;
/// More than a tile's tokens: rows of a tile lie this far apart.
const PACK: usize = 48;

/// A chat whose heads are handed over in groups of `group`, with tiles that say so or do not.
struct Chat {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    len: u32,
    group: usize,
    said: bool,
}

impl Chat {
    fn new(group: usize, said: bool, prefill_queries: i32) -> Self {
        let config = json!({
            "kv_h2o_prefill_queries": prefill_queries,
            "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8, "kv_h2o_sink_tokens": 8,
            "kv_h2o_recent_tokens": 16, "kv_h2o_trigger_min_tokens": 64, "kv_h2o_update_interval": 4,
            "kv_h2o_target_lossy_ratio": 2.0, "kv_h2o_aggregation": "norm_sum",
        });
        let layout = Layout::new(&Spec::f16_flash(1, 1, 4, 512)).unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let session = Session::new(config.to_string().as_bytes(), 1, 1).unwrap();
        Chat { session, layout, key, value, len: 0, group, said }
    }

    fn begin(&mut self) {
        let cache = Cache { layout: &self.layout, key: &mut self.key, value: &mut self.value };
        self.len = self.session.begin(0, cache, self.len).unwrap();
    }

    fn end(&mut self, heads: usize, queries: usize) -> Result<(), Status> {
        let cache = Cache { layout: &self.layout, key: &mut self.key, value: &mut self.value };
        let result = self.session.end(0, heads as u32, queries as u32, cache, self.len);
        result.map_err(|error| error.status())
    }

    /// Attention of some tokens: `[head][row][token]`.
    fn send(&self, attention: &[Vec<f32>]) {
        let rows = attention.len() / HEADS;
        for group in attention.chunks(self.group * rows) {
            let tokens = group[0].len();
            let tiles = tokens.div_ceil(PACK);
            let sums: Vec<f32> = group.iter().map(|row| row.iter().sum()).collect();
            for tile in 0..tiles {
                let range = tile * PACK..tokens.min((tile + 1) * PACK);
                let mut values = vec![f32::NAN; group.len() * PACK];
                for (row, out) in group.iter().zip(values.chunks_mut(PACK)) {
                    out[..range.len()].copy_from_slice(&row[range.clone()]);
                }
                let data: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
                let last = tile + 1 == tiles;
                let tile = Tile {
                    dtype: Dtype::F32,
                    pack: PACK,
                    queries: group.len(),
                    heads: if self.said { group.len() / rows } else { 0 },
                    tokens: range.len(),
                    token_begin: range.start,
                    first: tile == 0,
                    last,
                    data: &data,
                    update_scale: Some(&vec![1.0; group.len()]),
                    row_sum: last.then_some(&sums),
                };
                self.session.scores(0, 0, &tile).unwrap();
            }
        }
    }
}

#[test]
fn a_group_of_heads_may_come_as_rows_of_one_tile() {
    let random = &mut Random::new(11);
    let mut chats = [1, 2, HEADS].map(|group| Chat::new(group, false, 0));
    for chat in &mut chats {
        chat.begin();
        chat.len = 100;
        chat.end(HEADS, 100).unwrap();
    }
    for _ in 0..120 {
        chats.iter_mut().for_each(Chat::begin);
        chats.iter_mut().for_each(|chat| chat.len += 1);
        let attention: Vec<Vec<f32>> =
            (0..HEADS).map(|_| (0..chats[0].len).map(|_| random.unit() as f32 + 1e-3).collect()).collect();
        for chat in &mut chats {
            chat.send(&attention);
            assert_eq!(chat.end(HEADS + 1, 1), Err(Status::InvalidArgument), "a head is missing");
            assert_eq!(chat.end(HEADS, 2), Err(Status::InvalidArgument), "a row is missing");
            chat.end(HEADS, 1).unwrap();
        }
        let positions = chats.each_ref().map(|chat| chat.session.positions(0).unwrap());
        assert!(positions[0] == positions[1] && positions[0] == positions[2], "{positions:?}");
    }
    let metrics = chats[0].session.metrics(Some(0)).unwrap();
    assert!(metrics.h2o_total_evict_tokens > 40.0 && metrics.h2o_plan_count > 5.0, "{metrics:?}");
}

/// Rows of a step decide what a prompt is, not rows of a tile: 16 heads of 5 drafts are 80 rows.
#[test]
fn steps_of_many_heads_and_few_rows_are_no_prompts_and_prompts_may_come_in_groups() {
    let kinds = [(1, true), (1, false), (4, true), (4, false), (HEADS, true), (HEADS, false)];
    for prefill_queries in [0, 3, -1] {
        let random = &mut Random::new(12);
        let mut chats = kinds.map(|(group, said)| Chat::new(group, said, prefill_queries));
        let mut evicted = false;
        for step in 0..60 {
            let rows = [100, 5, 1, 7, 5, 70][if step == 0 { 0 } else { 1 + step % 5 }];
            chats.iter_mut().for_each(Chat::begin);
            let prompt = chats[0].len == 0 || rows > 64;
            chats.iter_mut().for_each(|chat| chat.len += rows as u32);
            let len = chats[0].len;
            let some = |_| (0..len).map(|_| random.unit() as f32 + 1e-3).collect();
            let attention: Vec<Vec<f32>> = (0..HEADS * rows).map(some).collect();
            for (chat, (_, said)) in chats.iter_mut().zip(kinds) {
                chat.said = said || prompt && prefill_queries >= 0;
                chat.send(&attention);
                chat.end(HEADS, rows).unwrap();
            }
            let positions: Vec<_> = chats.iter().map(|chat| chat.session.positions(0).unwrap()).collect();
            assert!(positions.iter().all(|others| *others == positions[0]), "step {step}: {positions:?}");
            evicted |= positions[0].len() > 1;
            if len > 380 {
                chats.iter_mut().for_each(|chat| (chat.session.reset(None).unwrap(), chat.len = 0).0);
            }
        }
        assert!(evicted);
    }
}

#[test]
fn a_group_of_heads_in_a_prompt_of_which_some_rows_count_must_say_how_many_it_has() {
    for (said, result) in [(false, Err(Status::InvalidArgument)), (true, Ok(()))] {
        let mut chat = Chat::new(4, said, 3);
        chat.begin();
        chat.len = 10;
        chat.send(&vec![vec![1.0; 10]; HEADS * 10]);
        assert_eq!(chat.end(HEADS, 10), result);
    }
}
