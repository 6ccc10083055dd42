//! Groups for Diffie-Hellman (RFC 7919, appendix A).
//!
//! Their primes are made from the digits of e, as the RFC defines them:
//! `p = 2^n - 2^(n - 64) + (floor(2^(n - 130) e) + x) 2^64 - 1`.

use core::num::NonZeroU32;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize as _};
use zeroize::Zeroizing;

/// Fraction bits of [`E`].
const E_FRACTION_BITS: u32 = 8192 - 130;
/// `floor(2^8062 e)`.
const E: &str = "adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2f\
    e363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
    7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324\
    fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5\
    fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4de\
    f99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc43\
    7944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930\
    e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e01\
    2d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d\
    0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a\
    4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad\
    0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092\
    350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77ca\
    f992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b\
    71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004c\
    f600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab\
    8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba35c35f5c\
    59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c51aa\
    691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
    3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe\
    86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// How the two ends agree on a number that those who listen do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// They do not: whoever has listened can try secrets at leisure.
    Null,
    /// 2,048 bits.
    Ffdhe2048,
    /// 3,072 bits.
    Ffdhe3072,
    /// 4,096 bits.
    Ffdhe4096,
    /// 6,144 bits.
    Ffdhe6144,
    /// 8,192 bits.
    Ffdhe8192,
}

impl Group {
    /// Every group, in the order of their numbers (NVMe Base 2.0, "DH-HMAC-CHAP DH Group
    /// Identifiers").
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// Its number on the wire.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The group with this number.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Length of its numbers on the wire, in bytes; 0 without Diffie-Hellman.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self.facts() {
            Some((bits, ..)) => bits as usize / 8,
            None => 0,
        }
    }

    /// Bits, the `x` of its prime, and bits of a secret exponent, which is twice the group's strength
    /// (RFC 7919, appendix A, "The estimated symmetric-equivalent strength").
    const fn facts(self) -> Option<(u32, u32, u32)> {
        match self {
            Self::Null => None,
            Self::Ffdhe2048 => Some((2048, 560_316, 225)),
            Self::Ffdhe3072 => Some((3072, 2_625_351, 275)),
            Self::Ffdhe4096 => Some((4096, 5_736_041, 325)),
            Self::Ffdhe6144 => Some((6144, 15_705_020, 375)),
            Self::Ffdhe8192 => Some((8192, 10_965_728, 400)),
        }
    }
}

/// Longest secret exponent, in bytes.
pub(super) const EXPONENT_BYTES: usize = 50;

/// One side's secret exponent in a group.
pub(super) struct Exponent {
    group: Group,
    params: BoxedMontyParams,
    /// Of `bits` bits, the highest one set.
    secret: BoxedUint,
    bits: u32,
}

impl Exponent {
    /// From random bytes; none in [`Group::Null`].
    pub(super) fn new(group: Group, random: &[u8; EXPONENT_BYTES]) -> Option<Self> {
        let (_, _, bits) = group.facts()?;
        let precision = u32::try_from(EXPONENT_BYTES * 8).expect("a few bytes");
        let mut bytes = Zeroizing::new(*random);
        // Neither shorter than it is taken for, nor longer.
        let unused = precision - bits;
        let first = (unused / 8) as usize;
        bytes[..first].fill(0);
        bytes[first] = bytes[first] & (0xff >> (unused % 8)) | 0x80 >> (unused % 8);
        let secret = BoxedUint::from_be_slice(bytes.as_slice(), precision);
        Some(Self {
            group,
            params: BoxedMontyParams::new_vartime(prime(group)?),
            secret: secret.expect("as long as it is"),
            bits,
        })
    }

    /// What the other side may know: `g^secret mod p`, as long as the group's numbers.
    pub(super) fn public(&self) -> Vec<u8> {
        let two = BoxedUint::from(2_u8).resize_unchecked(self.params.bits_precision());
        self.raise(two).to_vec()
    }

    /// What both sides know then: `public^secret mod p`. `None` if the other side's number lies
    /// outside the group, or where it would tell the outcome (RFC 7919, section 5.1).
    pub(super) fn shared(&self, public: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if public.len() != self.group.len_bytes() {
            return None;
        }
        let precision = self.params.bits_precision();
        let public = BoxedUint::from_be_slice(public, precision).ok()?;
        let one = BoxedUint::one_with_precision(precision);
        let last = self.params.modulus().as_ref().wrapping_sub(&one);
        (one < public && public < last).then(|| self.raise(public))
    }

    fn raise(&self, base: BoxedUint) -> Zeroizing<Vec<u8>> {
        let raised =
            BoxedMontyForm::new(base, &self.params).pow_bounded_exp(&self.secret, self.bits);
        Zeroizing::new(raised.retrieve().to_be_bytes().into_vec())
    }
}

impl Drop for Exponent {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.secret);
    }
}

impl core::fmt::Debug for Exponent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Exponent({:?})", self.group)
    }
}

/// The prime of a group.
fn prime(group: Group) -> Option<Odd<BoxedUint>> {
    let (bits, x, _) = group.facts()?;
    let precision = NonZeroU32::new(bits)?.get();
    let e = BoxedUint::from_be_hex(E, 8192 - 128).expect("digits");
    let digits = e
        .shr(E_FRACTION_BITS - (bits - 130))
        .resize_unchecked(precision);
    let middle = digits
        .wrapping_add(BoxedUint::from(x).resize_unchecked(precision))
        .shl(64);
    let power = BoxedUint::one_with_precision(precision).shl(bits - 64);
    let one = BoxedUint::one_with_precision(precision);
    // 2^n is 0 in n bits.
    let prime = middle.wrapping_sub(&power).wrapping_sub(&one);
    Option::from(Odd::new(prime))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn primes_are_those_of_the_rfc() {
        let ends = [
            (Group::Ffdhe2048, "886b423861285c97"),
            (Group::Ffdhe3072, "25e41d2b66c62e37"),
            (Group::Ffdhe4096, "c68a007e5e655f6a"),
            (Group::Ffdhe6144, "a40e329cd0e40e65"),
            (Group::Ffdhe8192, "d68c8bb7c5c6424c"),
        ];
        for (group, end) in ends {
            let prime = hex(&prime(group).expect("a prime").as_ref().to_be_bytes());
            assert_eq!(prime.len(), group.len_bytes() * 2);
            assert!(prime.starts_with("ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1"));
            assert!(
                prime.ends_with(&format!("{end}ffffffffffffffff")),
                "{group:?}"
            );
        }
        assert!(prime(Group::Null).is_none());
    }

    #[test]
    fn two_generates_half_of_the_smallest_group() {
        // Raised to (p - 1) / 2 it is 1: so it is in a prime group of a safe prime.
        let prime = prime(Group::Ffdhe2048).expect("a prime");
        let params = BoxedMontyParams::new_vartime(prime.clone());
        let two = BoxedUint::from(2_u8).resize_unchecked(2048);
        let half = prime.as_ref().shr(1);
        let raised = BoxedMontyForm::new(two, &params).pow(&half).retrieve();
        assert_eq!(raised, BoxedUint::one_with_precision(2048));
    }

    #[test]
    fn both_sides_know_the_same_then() {
        for group in Group::ALL.into_iter().skip(1) {
            let one = Exponent::new(group, &[0x5a; EXPONENT_BYTES]).expect("a group");
            let other = Exponent::new(group, &[0xc3; EXPONENT_BYTES]).expect("a group");
            let (public, others) = (one.public(), other.public());
            assert_eq!(public.len(), group.len_bytes());
            assert_ne!(public, others);
            assert_eq!(one.shared(&others), other.shared(&public), "{group:?}");
            assert!(one.shared(&others).is_some());
        }
        assert!(Exponent::new(Group::Null, &[1; EXPONENT_BYTES]).is_none());
    }

    #[test]
    fn numbers_that_would_tell_the_outcome_are_refused() {
        let group = Group::Ffdhe2048;
        let exponent = Exponent::new(group, &[7; EXPONENT_BYTES]).expect("a group");
        let mut small = vec![0; group.len_bytes()];
        assert!(exponent.shared(&small).is_none(), "0");
        *small.last_mut().expect("long") = 1;
        assert!(exponent.shared(&small).is_none(), "1");
        *small.last_mut().expect("long") = 2;
        assert!(exponent.shared(&small).is_some(), "2");
        assert!(exponent.shared(&small[1..]).is_none(), "another length");
        let mut large = prime(group)
            .expect("a prime")
            .as_ref()
            .to_be_bytes()
            .to_vec();
        assert!(exponent.shared(&large).is_none(), "p");
        *large.last_mut().expect("long") -= 1;
        assert!(exponent.shared(&large).is_none(), "p - 1");
        *large.last_mut().expect("long") -= 1;
        assert!(exponent.shared(&large).is_some(), "p - 2");
        assert!(
            exponent.shared(&vec![0xff; group.len_bytes()]).is_none(),
            "beyond"
        );
    }

    #[test]
    fn groups_have_their_numbers() {
        for (id, group) in (0..).zip(Group::ALL) {
            assert_eq!((group.id(), Group::of(id)), (id, Some(group)));
        }
        assert_eq!(Group::of(6), None);
    }
}
