//! What may be asked of a store: gets, puts, look-ups and removals of a few keys.

use crate::source::Source;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Its value.
    Get,
    /// That it has a value.
    Put {
        /// How long the value is, in parts of 65,536 of the longest.
        len_share: u16,
    },
    /// Whether it has one.
    Exists,
    /// That it has none.
    Remove,
}

/// A request, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Less than the number of keys.
    pub key: u8,
    /// What is asked of it.
    pub request: Request,
}

impl Step {
    /// Any step, of so many keys: about as many puts as gets, now and then a removal.
    pub fn draw(source: &mut impl Source, keys: u8) -> Self {
        let key = source.below(keys);
        let request = match source.below(100) {
            0..45 => Request::Get,
            45..88 => Request::Put {
                len_share: u16::from_le_bytes(source.array()),
            },
            88..94 => Request::Exists,
            _ => Request::Remove,
        };
        Self { key, request }
    }
}

impl Request {
    /// The length of what is put, from `least` to `most`; of what else, 0.
    #[must_use]
    pub fn len_between(self, least: u32, most: u32) -> u32 {
        let Self::Put { len_share } = self else {
            return 0;
        };
        let room = u64::from(most - least) + 1;
        let beyond = (room * u64::from(len_share)) >> 16;
        least + u32::try_from(beyond).expect("less than the room")
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::random::SplitMix64;

    use super::*;
    use crate::source::Bytes;

    #[test]
    fn bytes_choose_keys_requests_and_lengths() {
        let mut bytes = Bytes::new(&[9, 0, 1, 45, 0xff, 0xff, 2, 88, 3, 199]);
        let steps: Vec<_> = (0..4).map(|_| Step::draw(&mut bytes, 8)).collect();
        let longest = Request::Put {
            len_share: u16::MAX,
        };
        let expected = [
            (1, Request::Get),
            (1, longest),
            (2, Request::Exists),
            (3, Request::Remove),
        ];
        let expected = expected.map(|(key, request)| Step { key, request });
        assert_eq!(steps, expected);
        assert_eq!(longest.len_between(5, 9), 9);
        assert_eq!(Request::Put { len_share: 0 }.len_between(5, 9), 5);
        assert_eq!(Request::Get.len_between(5, 9), 0);
        assert_eq!(longest.len_between(0, u32::MAX), u32::MAX - 0xffff);
    }

    #[test]
    fn every_kind_of_request_and_every_key_occurs() {
        let mut random = SplitMix64::new(1);
        let steps: Vec<_> = (0..2_000).map(|_| Step::draw(&mut random, 48)).collect();
        for key in 0..48 {
            assert!(steps.iter().any(|step| step.key == key));
        }
        let removals = steps.iter().filter(|step| step.request == Request::Remove);
        assert!((60..180).contains(&removals.count()));
    }
}
