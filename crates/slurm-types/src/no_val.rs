//! Slurm's numbers that mean "no number" (`slurm.h`).

/// `INFINITE`: unlimited, for 32-bit fields.
pub const INFINITE: u32 = 0xffff_ffff;
/// `NO_VAL`: not set, for 32-bit fields. jobcomp/script prints it as `ARRAYTASKID=4294967294`.
pub const NO_VAL: u32 = 0xffff_fffe;
/// `INFINITE64`: unlimited, for 64-bit fields.
pub const INFINITE64: u64 = 0xffff_ffff_ffff_ffff;
/// `NO_VAL64`: not set, for 64-bit fields.
pub const NO_VAL64: u64 = 0xffff_ffff_ffff_fffe;
/// `NO_VAL16`: not set, for 16-bit fields.
pub const NO_VAL16: u16 = 0xfffe;

/// A 32-bit number, or `None` if it stands for "not set" or "unlimited".
pub const fn real_u32(value: u32) -> Option<u32> {
    match value {
        INFINITE | NO_VAL => None,
        real => Some(real),
    }
}
