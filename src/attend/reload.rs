//! Reading blocks that are in a file alone, in the part of a step.

use super::block::Codes;
use super::found::{Arrived, Found};
use super::offload::{self, Read, Source, Wanted};
use super::step::{FEW_ROWS, Run, Unit, Work};
use super::tokens::Tile;
use crate::arch::attend::{Line, Running};
use crate::arch::estimates::LANES;
use crate::layout;
use crate::status::Result;
use crate::sys::memory;
use std::time::Instant;

impl Run<'_> {
    /// Chooses the blocks of a KV head that are in a file alone and that the rows want, for its pieces from one on. The part that has
    /// the first counts those of which nothing is known.
    pub(super) fn choose_away(
        &self,
        unit: &Unit,
        (head, piece): (usize, usize),
        deadline: Instant,
        work: &mut Work,
    ) -> Result<()> {
        let (tokens, range) = (self.tokens, self.vectors(unit, head));
        work.reads.wanted.clear();
        let Some(source) = tokens.source.filter(|_| !tokens.blocks.away(head).is_empty()) else { return Ok(()) };
        let mut reads = std::mem::take(&mut work.reads);
        let mut counts = work.found.reads;
        let chosen = if self.step.queries.rows > FEW_ROWS {
            let wanted = |block: &u32| Wanted { block: *block, head, share: 0.0, is_known: true, piece: 0 };
            memory::collect(tokens.blocks.away(head).iter().map(wanted)).map(|all| {
                reads.wanted = all;
                0
            })
        } else {
            let lanes = tokens.shape.lanes() * LANES;
            let vectors = range.map(|at| (self.known(at, work), &work.queries[at * lanes..][..tokens.shape.dims]));
            source.choose((tokens.blocks, head), vectors, deadline, &mut reads, &mut counts)
        };
        reads.wanted.retain(|wanted| self.sees(unit, wanted.block));
        (work.reads, work.found.reads) = (reads, counts);
        let unknown = chosen?;
        work.found.reads.late += if piece == 0 { unknown } else { 0 };
        Ok(())
    }

    /// Reads and folds the next of the chosen blocks, those of a piece of a KV head. Each waits for its turn, so that sums have
    /// the same bits whatever the system has in memory; once one is not there, all are asked for.
    pub(super) fn fold_away(
        &self,
        unit: &Unit,
        (head, piece): (usize, usize),
        deadline: Instant,
        work: &mut Work,
    ) -> Result<()> {
        let Some(source) = self.tokens.source else { return Ok(()) };
        let is_of_piece = |wanted: &Wanted| (wanted.head, wanted.piece) == (head, piece);
        work.reads.most_arrived = work.found.arrived.len() + Found::MOST_ARRIVED;
        while let Some(wanted) = work.reads.chosen.get(work.reads.next).copied().filter(is_of_piece) {
            work.reads.next += 1;
            if self.read(unit, &source, wanted, work)? {
                continue;
            }
            if !std::mem::replace(&mut work.reads.are_asked, true) {
                work.reads.chosen[work.reads.next..].iter().for_each(|other| source.ask(self.tokens.blocks, *other));
            }
            loop {
                if !offload::pause(deadline, &mut work.found.reads) {
                    work.found.reads.late += 1;
                    break;
                }
                if self.read(unit, &source, wanted, work)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The softmax of the raw tokens of a KV head, which are of other pieces: what is known of the sums of each piece of the file.
    pub(super) fn weigh_raw(&self, unit: &Unit, head: usize, work: &mut Work) -> Result<()> {
        memory::resize(&mut work.raw, work.running.len())?;
        work.raw[self.vectors(unit, head)].fill(Running::default());
        for tile in self.seen_tiles(unit) {
            let Some((from, range, (count, live))) = self.raw(unit, tile, head)? else { continue };
            layout::keys_to_panels(&from, range, &mut work.keys);
            let stride = self.float_logits(unit, Tile::Raw(tile), head, (count, live), work);
            let range = self.vectors(unit, head);
            for (logits, raw) in work.logits[..range.len() * stride].chunks_exact_mut(stride).zip(&mut work.raw[range])
            {
                (self.kernels.soften)(logits.as_chunks_mut::<LANES>().0, raw);
            }
        }
        Ok(())
    }

    /// The log of what is known to be summed by a query vector.
    pub(super) fn known(&self, at: usize, work: &Work) -> f32 {
        let raw = work.raw.get(at).map_or(f32::NEG_INFINITY, Running::log);
        work.running[at].log().max(raw)
    }

    /// Reads and folds a head of a block; false if it is not in the system's memory yet.
    pub(super) fn read(&self, unit: &Unit, source: &Source<'_>, wanted: Wanted, work: &mut Work) -> Result<bool> {
        let mut lines = std::mem::take(&mut work.reads.lines);
        let read = source.read(self.tokens.blocks, wanted, &mut lines);
        let is_read = match read {
            Ok(Read::Done) => self.fold_read(unit, wanted, &lines, work).map(|()| true),
            Ok(Read::Later) => Ok(false),
            Ok(Read::Lost) => work.found.lose(wanted.block, wanted.head).map(|()| true),
            Ok(Read::Failed(error)) => {
                work.found.reads.failed += 1;
                work.found.failure.get_or_insert(error);
                Ok(true)
            }
            Err(error) => Err(error),
        };
        work.reads.lines = lines;
        is_read
    }

    /// Folds codes that were read, and keeps them where their share counts.
    pub(super) fn fold_read(&self, unit: &Unit, wanted: Wanted, lines: &[Line], work: &mut Work) -> Result<()> {
        let (Wanted { block, head, .. }, shape) = (wanted, self.tokens.shape);
        self.fold_block(unit, block, head, &shape.view(shape.parts(lines), &[]), work)?;
        work.found.reads.read += 1;
        if self.step.queries.rows <= FEW_ROWS && self.tokens.weighs {
            let range = self.vectors(unit, head);
            let known = range.map(|at| self.known(at, work));
            if work.shares.last(known) >= Found::LEAST_SHARE
                && work.found.arrived.len() < work.reads.most_arrived
                && let Ok(codes) = Codes::copy_of(lines)
            {
                work.found.arrive(Arrived { block, head, codes });
            }
        }
        Ok(())
    }
}
