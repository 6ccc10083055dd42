//! Instances, tiers, blocks, length classes.

/// Tokens that one block covers, in the traces that Mooncake published.
pub const TOKENS_PER_BLOCK: u32 = 512;
/// Most instances that one index can name.
pub const INSTANCES_MAX: usize = 4096;

/// Hash of a block and of all blocks before it.
pub type BlockHash = u64;

/// An instance of the serving cluster, counted from 0 within its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u16);

impl InstanceId {
    /// The instance at this position of a list of instances.
    ///
    /// # Panics
    /// If `index` is not below [`INSTANCES_MAX`].
    #[must_use]
    pub fn at(index: usize) -> Self {
        assert!(index < INSTANCES_MAX, "instance {index} is beyond the most");
        Self(u16::try_from(index).expect("the most fits"))
    }

    /// Its position in a list of instances.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where an instance keeps a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Memory of the accelerator.
    Vram,
    /// Memory of the host.
    Dram,
    /// A drive.
    Ssd,
}

impl Tier {
    /// All tiers, the fastest first.
    pub const ALL: [Self; 3] = [Self::Vram, Self::Dram, Self::Ssd];

    pub(crate) const fn bit(self) -> u16 {
        match self {
            Self::Vram => 1,
            Self::Dram => 2,
            Self::Ssd => 4,
        }
    }
}

/// How long a prompt is, for reports and for fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LengthClass {
    /// Under 8,192 tokens.
    Short,
    /// 8,192 tokens or more, under 32,768.
    Medium,
    /// 32,768 tokens or more.
    Long,
}

impl LengthClass {
    /// All classes, the shortest first.
    pub const ALL: [Self; 3] = [Self::Short, Self::Medium, Self::Long];

    /// The class of a prompt.
    #[must_use]
    pub const fn of(input_tokens: u32) -> Self {
        match input_tokens {
            0..8_192 => Self::Short,
            8_192..32_768 => Self::Medium,
            _ => Self::Long,
        }
    }

    /// Its position in [`LengthClass::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Short => 0,
            Self::Medium => 1,
            Self::Long => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_meet_at_their_bounds() {
        assert_eq!(LengthClass::of(8_191), LengthClass::Short);
        assert_eq!(LengthClass::of(8_192), LengthClass::Medium);
        assert_eq!(LengthClass::of(32_767), LengthClass::Medium);
        assert_eq!(LengthClass::of(32_768), LengthClass::Long);
        for (index, class) in LengthClass::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), index);
        }
    }

    #[test]
    fn the_last_instance_has_an_id() {
        assert_eq!(InstanceId::at(INSTANCES_MAX - 1).index(), INSTANCES_MAX - 1);
    }

    #[test]
    #[should_panic(expected = "beyond the most")]
    fn one_more_has_none() {
        assert_eq!(InstanceId::at(INSTANCES_MAX).0, 0);
    }
}
