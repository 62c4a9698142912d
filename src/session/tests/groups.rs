//! Query heads that share a KV head, handed over as rows of one tile.

use super::random::Random;
use super::shared::Session;
use crate::dtype::Dtype;
use crate::h2o::Tile;
use crate::layout::{Layout, Spec};
use crate::status::Status;
use crate::store::Cache;
use serde_json::json;

const HEADS: usize = 4;
/// More than a tile's tokens: rows of a tile lie this far apart.
const PACK: usize = 48;

/// A chat whose heads are handed over in groups of `group`.
struct Chat {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    len: u32,
    group: usize,
}

impl Chat {
    fn new(group: usize) -> Self {
        let config = json!({
            "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8, "kv_h2o_sink_tokens": 8,
            "kv_h2o_recent_tokens": 16, "kv_h2o_trigger_min_tokens": 64, "kv_h2o_update_interval": 4,
            "kv_h2o_target_lossy_ratio": 2.0, "kv_h2o_aggregation": "norm_sum",
        });
        let layout = Layout::new(&Spec::f16_flash(1, 1, 4, 512)).unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Chat { session: Session::new(config.to_string().as_bytes(), 1, 1).unwrap(), layout, key, value, len: 0, group }
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

    /// Attention of one token: `[head][token]`.
    fn send(&self, attention: &[Vec<f32>]) {
        for group in attention.chunks(self.group) {
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
    let mut chats = [1, 2, HEADS].map(Chat::new);
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
