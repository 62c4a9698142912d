//! A chat that changes at random, and what its file must have.

use crate::common::Random;
use mnnkv::snapshot::{Geometry, Run, Snapshot};
use mnnkv::status::Result;
use std::collections::BTreeMap;

/// Layers, pieces, states and sections by their names.
pub type Things = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Default)]
pub struct Chat {
    pub things: Things,
    layers: BTreeMap<u32, (Geometry, Vec<(u32, u32)>)>,
    pieces: u32,
}

/// One entry: geometry, then piece and token of each token.
pub fn layer_bytes(geometry: &Geometry, tokens: impl Iterator<Item = (u32, u32)>) -> Vec<u8> {
    let mut bytes = format!("{geometry:?}").into_bytes();
    tokens.for_each(|(piece, token)| bytes.extend([piece.to_le_bytes(), token.to_le_bytes()].concat()));
    bytes
}

pub fn piece_bytes<'a>(parts: impl Iterator<Item = &'a [u8]>, raw_checksum: u64) -> Vec<u8> {
    let mut bytes = raw_checksum.to_le_bytes().to_vec();
    for part in parts {
        bytes.extend(part.len().to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

/// All that can be read of a file.
pub fn read(file: &Snapshot) -> BTreeMap<String, Result<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for (layer, entry) in file.layers() {
        let tokens = entry.runs.iter().flat_map(|run| (run.offset..run.offset + run.count).map(|t| (run.of, t)));
        found.insert(format!("layer {layer}"), Ok(layer_bytes(&entry.geometry, tokens)));
        found.insert(format!("state of layer {layer}"), file.layer_state(layer));
    }
    for piece in file.pieces() {
        let bytes = file
            .piece(piece)
            .map(|piece| piece_bytes((0..piece.ends.len()).map(|part| piece.part(part)), piece.raw_checksum));
        found.insert(format!("piece {piece}"), bytes);
    }
    for name in file.names() {
        found.insert(format!("section {name}"), file.section(name));
    }
    found
}

/// As [`read`], of a file without damage.
pub fn read_all(file: &Snapshot) -> Things {
    read(file).into_iter().map(|(name, bytes)| (name, bytes.unwrap())).collect()
}

impl Chat {
    /// Stages random changes.
    pub fn change(&mut self, file: &mut Snapshot, random: &mut Random) -> Result<()> {
        for layer in 0..3 {
            if !random.once_in(3) {
                self.change_layer(layer, file, random)?;
            }
        }
        for name in ["tokens", "é", "sampler"] {
            let key = format!("section {name}");
            match random.below(6) {
                0 => {
                    file.remove(name)?;
                    self.things.remove(&key);
                }
                1..4 => {
                    let bytes = value(self.things.get(&key), random);
                    file.put(name, &bytes)?;
                    self.things.insert(key, bytes);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn change_layer(&mut self, layer: u32, file: &mut Snapshot, random: &mut Random) -> Result<()> {
        let geometry = Geometry { heads: 2, head_dim: 64, key: 1, value: 1 };
        let (geometry, tokens) = self.layers.entry(layer).or_insert((geometry, Vec::new()));
        match random.below(12) {
            0 => tokens.clear(),
            1 => {
                tokens.clear();
                geometry.head_dim += 1;
            }
            2..4 => tokens.retain(|_| !random.once_in(3)),
            4 if !tokens.is_empty() => drop(tokens.drain(..random.from(1, tokens.len()))),
            5 => {
                let third = tokens.len() / 3;
                tokens.rotate_left(third);
            }
            _ => {}
        }
        for _ in 0..random.below(3) {
            let parts: Vec<Vec<u8>> = (0..random.from(1, 4))
                .map(|_| {
                    let len = random.below(60);
                    random.bytes(len)
                })
                .collect();
            let (count, raw) = (random.from(1, 20) as u32, random.next());
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let piece = file.add_piece(layer, count, &slices, raw)?;
            assert_eq!(piece, self.pieces);
            self.pieces += 1;
            self.things.insert(format!("piece {piece}"), piece_bytes(slices.into_iter(), raw));
            tokens.extend((0..count).map(|token| (piece, token)));
        }
        let key = format!("state of layer {layer}");
        let state = value(self.things.get(&key), random);
        let runs: Vec<Run> =
            tokens.iter().map(|(piece, offset)| Run { of: *piece, offset: *offset, begin: 0, count: 1 }).collect();
        file.set_layer(layer, *geometry, &runs, &state)?;
        self.things.insert(key, state);
        self.things.insert(format!("layer {layer}"), layer_bytes(geometry, tokens.iter().copied()));
        Ok(())
    }
}

/// A value that often begins with the one before.
fn value(old: Option<&Vec<u8>>, random: &mut Random) -> Vec<u8> {
    let mut bytes = if random.once_in(3) { Vec::new() } else { old.cloned().unwrap_or_default() };
    let more = random.pick(&[0, 1, 64, 65, 150]);
    bytes.extend(random.bytes(more));
    bytes
}
