//! Shuffles of eight bytes by a mask of eight lanes.

/// For each lane in the mask the number of lanes before it; 0x80, which looks up 0, for the others.
pub(super) static EXPAND: [[u8; 8]; 256] = {
    let mut all = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut taken) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                all[mask][lane] = taken;
                taken += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    all
};

/// The number of lanes in the mask: not every CPU counts bits of a general register.
#[cfg(target_arch = "aarch64")]
pub(super) static COUNT: [u8; 256] = {
    let mut all = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        all[mask] = (mask as u8).count_ones() as u8;
        mask += 1;
    }
    all
};

/// The lanes in the mask, at the end of eight.
pub(super) static COMPRESS: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut at) = (8, 8);
        while lane > 0 {
            lane -= 1;
            if mask >> lane & 1 == 1 {
                at -= 1;
                all[mask][at] = lane as u8;
            }
        }
        mask += 1;
    }
    all
};
