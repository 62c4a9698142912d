//! What a layer does to hold its share: which blocks go to the file, which are dropped, and which come back.

use super::{MOST_LISTS, Share};
use crate::attend::{self, Arrived, BLOCK, Blocks, Cell, Format, Found, NarrowWork, Reads, Widths};
use crate::session::layer::{self, Layer};
use crate::session::step::Step;
use crate::session::tier::{Taken, Tier};
use crate::session::tokens::{Runs, Tokens};
use crate::status::{Error, Result, Status};
use crate::sys::memory;
use std::cmp::Ordering;
use std::time::Instant;

/// Blocks of a layer, beside those of the next step's tokens, for which others are in the file in time.
const AHEAD: usize = 2;
/// What is left of a score in the next step.
const DECAY: f32 = 0.95;

/// What a layer has done to hold its share.
#[derive(Debug, Default)]
pub(in crate::session) struct Ladder {
    /// Of the layer.
    number: u32,
    /// Tokens that were dropped since the reset, a token of each head as one, those that were lost included.
    pub(super) dropped: u64,
    /// Of `dropped`, those that were not lost.
    let_go: u64,
    /// Blocks may be without a head that is anywhere.
    has_gone: bool,
    pub(super) returned: u64,
    pub(super) lost: u64,
    /// Of `lost`, before the reset.
    lost_before: u64,
    pub(super) reads: Reads,
    pub(super) over_steps: u64,
    /// The last step ended above the share.
    is_over: bool,
    /// Why the first read failed.
    failure: Option<Error>,
    /// The begin or the end has not waited for all that is on its way to the file.
    waits: bool,
    /// When the begin or the end waits for the file no longer.
    deadline: Option<Instant>,
}

/// Whether blocks may be dropped that the file does not take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drops {
    Allowed,
    Refused,
}

impl Ladder {
    pub(in crate::session) fn new(number: u32) -> Self {
        Ladder { number, ..Ladder::default() }
    }

    /// The layer was reset.
    pub(in crate::session) fn reset(&mut self) {
        *self = Ladder {
            lost: self.lost,
            lost_before: self.lost,
            returned: self.returned,
            reads: self.reads,
            over_steps: self.over_steps,
            number: self.number,
            ..Ladder::default()
        };
    }

    /// Tokens that were dropped since the reset, lost ones with them and without.
    pub(in crate::session) fn gone(&self) -> [u64; 2] {
        [self.dropped, self.let_go]
    }

    /// A chat was opened that has lost so many.
    pub(in crate::session) fn take_gone(&mut self, [dropped, let_go]: [u64; 2]) {
        (self.dropped, self.let_go, self.has_gone) = (dropped, let_go, true);
    }

    pub(in crate::session) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Heads of blocks that the file had no more, since the reset.
    pub(in crate::session) fn loses(&self) -> u64 {
        self.lost - self.lost_before
    }

    /// Whether a block of the file could not be read since the reset.
    fn is_damaged(&self) -> bool {
        self.loses() > 0 || self.failure.is_some()
    }

    /// Whether tokens were dropped or lost since the reset.
    pub(in crate::session) fn has_dropped(&self) -> bool {
        self.dropped > 0
    }

    /// Whether tokens were dropped since the reset, lost ones aside.
    pub(in crate::session) fn drops(&self) -> bool {
        self.let_go > 0
    }

    /// Takes what a step has found. Returns the blocks that came from the file.
    pub(in crate::session) fn see(&mut self, blocks: &mut Blocks, found: &mut Found) -> Vec<Arrived> {
        self.reads.add(&std::mem::take(&mut found.reads));
        self.failure = self.failure.take().or(found.failure.take());
        if !found.masses.is_empty() {
            blocks.fade(DECAY);
        }
        for mass in found.masses.drain(..) {
            blocks.raise(mass.block, mass.head as usize, mass.share);
        }
        for (block, head) in found.lost.drain(..) {
            // Another round of the step has read it.
            if !found.arrived.iter().any(|arrived| (arrived.block, arrived.head) == (block, head)) {
                self.lose(blocks, block, head);
            }
        }
        // Rounds of a step that have read the same keep a copy each. The best come first: there may not be room for all.
        let mut arrived = std::mem::take(&mut found.arrived);
        arrived.sort_unstable_by_key(|arrived| (arrived.block, arrived.head));
        arrived.dedup_by_key(|arrived| (arrived.block, arrived.head));
        arrived.sort_unstable_by(|a, b| {
            let score = |arrived: &Arrived| blocks.score(arrived.block, arrived.head);
            score(b).total_cmp(&score(a)).then((a.block, a.head).cmp(&(b.block, b.head)))
        });
        arrived
    }

    /// Lets the blocks of the least score leave until all take `most` bytes, takes back those that have `arrived`, and removes
    /// those of which no head is left, whose places in the file are free.
    pub(in crate::session) fn fit(
        &mut self,
        blocks: &mut Blocks,
        arrived: &[Arrived],
        most: usize,
        pins: &Runs,
        mut tier: Option<&mut Tier>,
    ) {
        self.waits = false;
        if let Some(tier) = tier.as_deref_mut() {
            // Where memory is refused the next step takes note.
            let _ = self.settle(blocks, tier);
        }
        if blocks.bytes() > most {
            self.fit_lists(blocks, arrived, most / 8 * MOST_LISTS, pins);
            // A head drops nothing while others have blocks that may go to the file.
            for drops in [Drops::Refused, Drops::Allowed] {
                self.fit_codes(blocks, most, drops, pins, tier.as_deref_mut());
            }
        }
        if let Some(tier) = tier.as_deref_mut() {
            // What there is no memory for is read again.
            let _ = self.take_back(blocks, arrived, most, pins, tier);
        }
        blocks.give_back();
        if let Some(tier) = tier.as_deref_mut().filter(|_| self.waits) {
            tier.see_late();
        }
        self.remove_gone(blocks, tier);
    }

    /// Gives the blocks of the least score fewer bits until all take `most` bytes. Returns whether there were any to get them.
    pub(in crate::session) fn narrow(&self, blocks: &mut Blocks, most: usize, widths: &mut Widths) -> Result<bool> {
        let (mut has_any, mut work) = (false, NarrowWork::default());
        loop {
            let (bytes, (wide, saved)) = (blocks.bytes(), blocks.narrowing());
            if bytes <= most || wide == 0 {
                return Ok(has_any);
            }
            has_any = true;
            // So many of each head save what is above, if all fit.
            let count = (bytes - most).div_ceil((saved / wide).max(1)).div_ceil(blocks.heads());
            for head in 0..blocks.heads() {
                let wide = blocks.here(head).iter().copied().filter(|block| blocks.may_narrow(*block, head));
                for block in worst(blocks, wide, head, count, &Runs::default())? {
                    blocks.narrow(block, head, widths, &mut work)?;
                }
            }
        }
    }

    /// Takes back what has come from the file, as far as it finds room, or a block of its head has a lower score that the file
    /// has, too, and leaves: none is written, waited for or dropped for it.
    fn take_back(
        &mut self,
        blocks: &mut Blocks,
        arrived: &[Arrived],
        most: usize,
        pins: &Runs,
        tier: &mut Tier,
    ) -> Result<()> {
        let mut heads = memory::collect((0..blocks.heads()).map(|_| None))?;
        for Arrived { block, head, codes } in arrived {
            let (block, head, bytes) = (*block, *head, Blocks::bytes_of(codes));
            if !blocks.cell(block, head).is_away() {
                continue;
            }
            let others = match &mut heads[head] {
                Some(others) => others,
                others => others.insert(worst_stored(blocks, head, pins)?.into_iter().peekable()),
            };
            let score = blocks.score(block, head);
            while blocks.bytes() + bytes > most
                && let Some(other) = others.next_if(|other| blocks.score(*other, head) < score)
            {
                if self.is_damaged() {
                    self.check_copies(blocks, other, tier)?;
                }
                if blocks.cell(other, head).offloaded.is_some() {
                    blocks.leave(other, head);
                }
            }
            if blocks.bytes() + bytes <= most {
                blocks.arrive(block, head, codes)?;
                self.returned += 1;
            }
        }
        Ok(())
    }

    /// Takes note of the writes of the layer that have ended, and waits for the others while the step may: what leaves memory
    /// depends on the chat alone then, not on the speed of a disk.
    fn settle(&mut self, blocks: &mut Blocks, tier: &mut Tier) -> Result<()> {
        loop {
            tier.collect(self.number, blocks)?;
            let is_waiting = !tier.is_idle() && blocks.list().iter().any(|placed| placed.ticket > 0);
            if !is_waiting {
                return Ok(());
            }
            if !self.pause() {
                self.waits = true;
                return Ok(());
            }
        }
    }

    /// Waits a moment for the file; false where the step may wait no longer.
    fn pause(&mut self) -> bool {
        self.deadline.is_some_and(|deadline| attend::pause(deadline, &mut self.reads))
    }

    /// Queues a block, once the queue has room.
    fn write(&mut self, blocks: &mut Blocks, block: u32, tier: &mut Tier) -> Result<Taken> {
        loop {
            let taken = tier.write(self.number, blocks, block)?;
            if taken != Taken::Later || !self.pause() {
                return Ok(taken);
            }
            tier.collect(self.number, blocks)?;
        }
    }

    /// Queues blocks of the least score to be written, so that each head has some that can leave once so many more tokens come
    /// and all may take `most` bytes; and each head in turn one more, so that low scores make room for what comes back.
    fn write_ahead(
        &mut self,
        tokens: &mut Tokens,
        (coming, most): (u32, usize),
        pins: &Runs,
        tier: &mut Tier,
    ) -> Result<()> {
        let (turn, blocks) = (tokens.lengths.logical as usize, &mut tokens.blocks);
        let (heads, block) = (blocks.heads(), Blocks::block_bytes(blocks.shape(), Format::K4V4, blocks.heads()));
        let more = (coming as usize / BLOCK + AHEAD) * block;
        let wanted = (blocks.bytes() + more).saturating_sub(most).div_ceil(block.max(1));
        for head in (0..heads).filter(|_| wanted > 0) {
            let is_new = |block: &u32| {
                blocks.cell(*block, head).offloaded.is_none() && blocks.list()[*block as usize].place.is_none()
            };
            let new = blocks.here(head).iter().copied().filter(is_new);
            let missing = wanted.saturating_sub(stored(blocks, head).count()).max(usize::from(turn % heads == head));
            for block in worst(blocks, new, head, missing, pins)? {
                if !self.write_soon(blocks, block, tier)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Queues a block, once the queue has room. What has ended waits for the next step.
    fn write_soon(&mut self, blocks: &mut Blocks, block: u32, tier: &mut Tier) -> Result<bool> {
        while !tier.has_room() && self.pause() {}
        Ok(tier.write(self.number, blocks, block)? == Taken::Queued)
    }

    /// Removes the blocks of which no head is left.
    fn remove_gone(&mut self, blocks: &mut Blocks, mut tier: Option<&mut Tier>) {
        if !std::mem::take(&mut self.has_gone) {
            return;
        }
        for block in 0..blocks.list().len() as u32 {
            if let (Some((place, is_saved)), Some(tier)) = (blocks.unused(block), tier.as_deref_mut()) {
                tier.free_place(&place, blocks.size(), is_saved);
            }
        }
        blocks.remove_gone();
    }

    /// Drops blocks that are in the file alone, until what is known of all takes `most` bytes, but for what has `arrived`.
    fn fit_lists(&mut self, blocks: &mut Blocks, arrived: &[Arrived], most: usize, pins: &Runs) {
        let room = most / Blocks::away_bytes(blocks.heads());
        let Some(count) = blocks.list().len().checked_sub(room).filter(|count| *count > 0) else { return };
        let is_free = |block: &u32| {
            !blocks.cells_of(*block).iter().any(Cell::is_here)
                && !arrived.iter().any(|arrived| arrived.block == *block)
                && !is_pinned(blocks, *block, pins)
        };
        // Nothing is dropped for want of memory.
        let Ok(mut worst) = memory::collect((0..blocks.list().len() as u32).filter(is_free)) else { return };
        let score = |block: &u32| (0..blocks.heads()).map(|head| blocks.score(*block, head)).fold(0.0, f32::max);
        worst.sort_unstable_by(|a, b| score(a).total_cmp(&score(b)).then(a.cmp(b)));
        for block in worst.into_iter().take(count) {
            for head in 0..blocks.heads() {
                if blocks.forget(block, head) {
                    self.drop_head(blocks, block);
                }
            }
        }
    }

    /// Moves blocks to the file, or drops them, until all take `most` bytes. Each head gives the same number of blocks: what a
    /// block is worth compares within a head. In place of a block that the file does not take, one goes that it has already.
    fn fit_codes(&mut self, blocks: &mut Blocks, most: usize, drops: Drops, pins: &Runs, mut tier: Option<&mut Tier>) {
        while let Some(count) = above(blocks, most) {
            let cells = blocks.cells_here();
            // Nothing leaves for want of memory.
            let Ok(are_coming) = tier.as_deref_mut().map_or(Ok(false), |tier| self.queue(blocks, count, pins, tier))
            else {
                return;
            };
            for head in 0..blocks.heads() {
                if self.leave(blocks, (head, count), drops, pins, are_coming).is_err() {
                    return;
                }
            }
            if blocks.cells_here() == cells {
                return;
            }
        }
    }

    /// Queues so many blocks of each head that are to leave and that the file does not have, and waits for them while the step
    /// may. Returns whether the file takes them.
    fn queue(&mut self, blocks: &mut Blocks, count: usize, pins: &Runs, tier: &mut Tier) -> Result<bool> {
        let mut takes = true;
        for head in 0..blocks.heads() {
            for block in worst(blocks, blocks.here(head).iter().copied(), head, count, pins)? {
                if self.is_damaged() {
                    self.check_copies(blocks, block, tier)?;
                }
                // A block is written once: a second time its heads that are in the file alone would be lost.
                if blocks.list()[block as usize].place.is_none() {
                    takes &= self.write(blocks, block, tier)? != Taken::Refused;
                }
            }
        }
        self.settle(blocks, tier)?;
        Ok(takes)
    }

    /// Lets so many blocks of a head leave, as far as `drops` allows. are_coming: those that are not in the file will be.
    fn leave(
        &mut self,
        blocks: &mut Blocks,
        (head, count): (usize, usize),
        drops: Drops,
        pins: &Runs,
        are_coming: bool,
    ) -> Result<()> {
        // Those of the file, which may go in place of others.
        let mut others = None;
        for block in worst(blocks, blocks.here(head).iter().copied(), head, count, pins)? {
            if !blocks.cell(block, head).is_here() {
                // It went in the place of another.
                continue;
            }
            if blocks.cell(block, head).offloaded.is_some() {
                blocks.leave(block, head);
                continue;
            }
            let others = match &mut others {
                Some(others) => others,
                None => others.insert(worst_stored(blocks, head, pins)?.into_iter()),
            };
            let may_leave = |other: &u32| {
                let cell = blocks.cell(*other, head);
                cell.is_here() && cell.offloaded.is_some()
            };
            match others.find(may_leave) {
                Some(other) => blocks.leave(other, head),
                None if are_coming || blocks.list()[block as usize].ticket > 0 => self.waits = true,
                None if drops == Drops::Refused => break,
                None => {
                    blocks.leave(block, head);
                    self.drop_head(blocks, block);
                }
            }
        }
        Ok(())
    }

    /// A head of a block is nowhere any more.
    fn drop_head(&mut self, blocks: &Blocks, block: u32) {
        let tokens = u64::from(blocks.list()[block as usize].tokens());
        (self.dropped, self.let_go, self.has_gone) = (self.dropped + tokens, self.let_go + tokens, true);
    }

    /// Whether the last step ended above the share.
    pub(in crate::session) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The file is damaged: forgets the copies of a block that it has no more, so that those in memory are written anew. Heads
    /// whose last copy is gone are lost. A copy that cannot be read now may be read later.
    fn check_copies(&mut self, blocks: &mut Blocks, block: u32, tier: &mut Tier) -> Result<()> {
        let mut bytes = Vec::new();
        for head in 0..blocks.heads() {
            match tier.read(blocks, (block, head), &mut bytes) {
                Err(error) if error.status() == Status::Corrupt => self.lose(blocks, block, head),
                result => drop(result?),
            }
        }
        let unused = blocks.unused(block);
        unused.into_iter().for_each(|(place, is_saved)| tier.free_place(&place, blocks.size(), is_saved));
        Ok(())
    }

    /// The file has a head of a block no more.
    fn lose(&mut self, blocks: &mut Blocks, block: u32, head: usize) {
        if blocks.forget(block, head) && blocks.cell(block, head).is_nowhere() {
            self.lost += 1;
            self.dropped += u64::from(blocks.list()[block as usize].tokens());
            self.has_gone = true;
        }
    }
}

impl Layer {
    /// Takes what steps have found since the last call, before blocks get other numbers: parts of rows that read the layer and
    /// have not all come begin anew. BUSY: if a thread attends.
    pub(in crate::session) fn take_found(&mut self) -> Result<&mut Step> {
        let number = self.number;
        let Some(step) = self.step.get_mut() else { return Err(layer::busy(number)) };
        if let Some(quant) = &mut self.quant {
            quant.see(&mut step.tokens.blocks, step.round.all_found());
        }
        step.round.reset();
        Ok(step)
    }

    /// Takes what a step has found, and lets the least wanted blocks leave until the layer holds its share beside so many raw
    /// tokens. Waits for the file while the rows of the step may.
    pub(in crate::session) fn fit(&mut self, share: Option<&Share>, raw_tokens: u32, tier: Option<&mut Tier>) {
        let rows = self.last_step.max(1);
        let (Some(quant), Some(step)) = (&mut self.quant, self.step.get_mut()) else { return };
        let blocks = &mut step.tokens.blocks;
        let arrived = quant.see(blocks, step.round.all_found());
        // Where the step was refused memory, nothing leaves to make room for tokens that the next one quantises.
        if let Some(share) = share.filter(|_| !quant.is_short()) {
            if let Some(tier) = &tier {
                quant.ladder.deadline = Some(Instant::now() + tier.wait * rows);
            }
            let most = share.for_blocks(raw_tokens);
            // What memory is refused for has its bits still.
            let _ = quant.narrow(blocks, most);
            quant.ladder.fit(blocks, &arrived, most, &self.pins, tier);
        }
    }

    /// Takes note of the blocks that are in the file by now.
    pub(in crate::session) fn collect(&mut self, tier: Option<&mut Tier>) -> Result<()> {
        match (tier, self.step.get_mut()) {
            (Some(tier), Some(step)) => tier.collect(self.number, &mut step.tokens.blocks),
            _ => Ok(()),
        }
    }

    /// A step has ended beside so many raw tokens: lets blocks be written that the next ones may want to leave. What memory is
    /// refused for is written later.
    pub(in crate::session) fn write_ahead(&mut self, share: Option<&Share>, raw_tokens: u32, tier: Option<&mut Tier>) {
        let (Some(share), Some(tier), Some(quant)) = (share, tier, &mut self.quant) else { return };
        quant.ladder.deadline = Some(Instant::now() + tier.wait * self.last_step.max(1));
        if let Some(step) = self.step.get_mut() {
            // Blocks get fewer bits before any leaves.
            let most = share.for_blocks(raw_tokens) + quant.spared(&step.tokens.blocks);
            let _ = quant.ladder.write_ahead(&mut step.tokens, (self.last_step, most), &self.pins, tier);
        }
    }

    /// A step has ended beside so many raw tokens: counts one above the share.
    pub(in crate::session) fn see_share(&mut self, share: Option<&Share>, raw_tokens: u32) {
        if let (Some(share), Some(quant)) = (share, &mut self.quant) {
            let is_over = share.is_exceeded(raw_tokens, self.step.tokens.blocks.bytes());
            quant.ladder.is_over = is_over;
            quant.ladder.over_steps += u64::from(is_over);
        }
    }

    /// Where the file is damaged: forgets copies that it has no more, and heads whose last copy is gone.
    /// Returns how many are lost.
    pub(in crate::session) fn check_copies(&mut self, tier: &mut Tier) -> Result<u64> {
        let is_harmed = tier.is_harmed();
        self.take_found()?;
        let (Some(quant), Some(step)) = (&mut self.quant, self.step.get_mut()) else { return Ok(0) };
        let blocks = &mut step.tokens.blocks;
        if !is_harmed && !quant.ladder.is_damaged() {
            return Ok(0);
        }
        let before = quant.ladder.lost;
        for block in 0..blocks.list().len() as u32 {
            quant.ladder.check_copies(blocks, block, tier)?;
        }
        quant.ladder.remove_gone(blocks, Some(tier));
        Ok(quant.ladder.lost - before)
    }

    /// Drops what the file of the budget has no more.
    pub(in crate::session) fn lose(&mut self, mut lost: Found, tier: Option<&mut Tier>) {
        if let (Some(quant), Some(step)) = (&mut self.quant, self.step.get_mut()) {
            let blocks = &mut step.tokens.blocks;
            quant.ladder.see(blocks, &mut lost);
            quant.ladder.remove_gone(blocks, tier);
        }
    }
}

/// The blocks of the least score among some of a head, `count` of them at most, in no order.
fn worst(
    blocks: &Blocks,
    among: impl Iterator<Item = u32>,
    head: usize,
    count: usize,
    pins: &Runs,
) -> Result<Vec<u32>> {
    let is_free = |block: &u32| !blocks.cell(*block, head).is_of_base() && !is_pinned(blocks, *block, pins);
    let mut worst = memory::collect(among.filter(is_free))?;
    if count < worst.len() {
        worst.select_nth_unstable_by(count, |a, b| order(blocks, head, a, b));
        worst.truncate(count);
    }
    Ok(worst)
}

/// Whether a block has pinned tokens.
fn is_pinned(blocks: &Blocks, block: u32, pins: &Runs) -> bool {
    let placed = &blocks.list()[block as usize];
    !pins.pairs().is_empty() && pins.overlaps(placed.first..placed.first + placed.tokens())
}

/// The blocks of a head in memory that the file has, too.
fn stored(blocks: &Blocks, head: usize) -> impl Iterator<Item = u32> {
    blocks.here(head).iter().copied().filter(move |block| blocks.cell(*block, head).offloaded.is_some())
}

/// Those of them that may leave, the least score first.
fn worst_stored(blocks: &Blocks, head: usize, pins: &Runs) -> Result<Vec<u32>> {
    let mut stored = worst(blocks, stored(blocks, head), head, usize::MAX, pins)?;
    stored.sort_unstable_by(|a, b| order(blocks, head, a, b));
    Ok(stored)
}

/// How many blocks of each head are to leave until all take `most` bytes; `None`: they do, or none is in memory.
fn above(blocks: &Blocks, most: usize) -> Option<usize> {
    let (cells, codes) = (blocks.cells_here(), blocks.code_bytes());
    let is_above = blocks.bytes() > most && cells > 0 && codes > 0;
    is_above.then(|| (blocks.bytes() - most).div_ceil((codes / cells).max(1)).div_ceil(blocks.heads()))
}

/// By score, blocks of the same one by age.
fn order(blocks: &Blocks, head: usize, a: &u32, b: &u32) -> Ordering {
    let score = |block: &u32| blocks.score(*block, head);
    score(a).total_cmp(&score(b)).then(a.cmp(b))
}
