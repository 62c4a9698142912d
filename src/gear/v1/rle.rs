//! The run-length backend of format v1. Its output is unique: every encoder writes the same bytes.
//!
//! A control byte below 128 announces `control + 1` literals; one from 128 on announces one byte that stands
//! `(control & 127) + 4` times.

use crate::arch;
use crate::status::{Result, bail};

const MIN_RUN: usize = 4;
const MAX_RUN: usize = 131;
const MAX_LITERALS: usize = 128;

/// The largest output for `len` input bytes: literals only.
pub(super) const fn bound(len: usize) -> usize {
    len + len.div_ceil(MAX_LITERALS)
}

/// Encodes `src` into `out`, which holds at least [`bound`] bytes; returns the length.
pub(super) fn encode(src: &[u8], out: &mut [u8]) -> usize {
    let k = arch::kernels();
    let mut rest = src;
    let mut len = 0;
    while !rest.is_empty() {
        // Literals up to the next run, then all of the run; what is left of a long one may be too short for another.
        let (mut literals, run) = rest.split_at((k.next_run)(rest));
        while !literals.is_empty() {
            let (group, others) = literals.split_at(literals.len().min(MAX_LITERALS));
            out[len] = (group.len() - 1) as u8;
            out[len + 1..len + 1 + group.len()].copy_from_slice(group);
            len += 1 + group.len();
            literals = others;
        }
        rest = run;
        let mut run_len = (k.run_len)(run);
        while run_len >= MIN_RUN {
            let count = run_len.min(MAX_RUN);
            out[len] = 0x80 | (count - MIN_RUN) as u8;
            out[len + 1] = run[0];
            len += 2;
            run_len -= count;
            rest = &rest[count..];
        }
    }
    len
}

/// Decodes `src` into exactly `out`.
pub(super) fn decode(mut src: &[u8], out: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while let Some((&control, rest)) = src.split_first() {
        let is_run = control & 0x80 != 0;
        let (count, used) = match control & 0x7F {
            n if is_run => (n as usize + MIN_RUN, 1),
            n => (n as usize + 1, n as usize + 1),
        };
        if used > rest.len() {
            bail!(Corrupt, "RLE payload ends inside a group: {used} bytes announced, {} left", rest.len());
        }
        let Some(target) = out.get_mut(at..at + count) else {
            bail!(Corrupt, "RLE payload yields more than the {} bytes its frame announces", out.len());
        };
        if is_run {
            target.fill(rest[0]);
        } else {
            target.copy_from_slice(&rest[..used]);
        }
        at += count;
        src = &rest[used..];
    }
    if at != out.len() {
        bail!(Corrupt, "RLE payload yields {at} bytes; its frame announces {}", out.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(src: &[u8]) -> Vec<u8> {
        let mut out = vec![0; bound(src.len())];
        let len = encode(src, &mut out);
        out.truncate(len);
        let mut back = vec![0; src.len()];
        decode(&out, &mut back).unwrap();
        assert_eq!(back, src);
        out
    }

    #[test]
    fn worked_examples() {
        assert!(encoded(&[]).is_empty());
        assert_eq!(encoded(&[7]), [0, 7]);
        assert_eq!(encoded(&[7; 3]), [2, 7, 7, 7]);
        assert_eq!(encoded(&[7; 4]), [0x80, 7]);
        assert_eq!(encoded(&[7; 131]), [0xFF, 7]);
        assert_eq!(encoded(&[7; 132]), [0xFF, 7, 0, 7]);
        assert_eq!(encoded(&[1, 2, 3, 3, 3, 3, 4]), [1, 1, 2, 0x80, 3, 0, 4]);
    }

    #[test]
    fn literals_without_runs_meet_the_bound() {
        let src: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        assert_eq!(encoded(&src).len(), bound(src.len()));
    }

    #[test]
    fn malformed_payloads_are_corrupt() {
        for payload in [&[0x80][..], &[3, 1, 2], &[0x80, 1], &[0x81, 1, 0, 2], &[]] {
            assert!(decode(payload, &mut [0; 5]).is_err(), "{payload:?}");
        }
    }
}
