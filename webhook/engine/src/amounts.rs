//! Kubernetes quantities and amounts of extended resources.
//!
//! A quantity is text such as `2`, `"1.0"`, `500m`, `1e3` or `4Gi`. It is held exactly, in billionths, because that is
//! the finest that Kubernetes knows; what is finer is rounded up, as Kubernetes does. An extended resource (a GPU) is
//! had whole or not at all, so for those anything but a whole number is an error and nothing is rounded.
//!
//! Amounts stay within `i64::MAX`: that is what policies can compare, and a sum that sticks there is above every limit.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// The largest amount, so that a policy (a Cedar `Long` is an `i64`) can hold every sum.
pub const MAX: u64 = i64::MAX.unsigned_abs();

const NANOS_PER_UNIT: u128 = 1_000_000_000;
const MAX_NANOS: u128 = (MAX as u128) * NANOS_PER_UNIT;

/// A number in Kubernetes' notation, in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

/// Why a value is no quantity, or not one that may stand where it stands. Each message continues the field's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("must be a number or a string")]
    NotScalar,
    #[error("is empty but must be a quantity")]
    Empty,
    #[error("is {0} but must be a quantity, such as `1`, `500m` or `2Gi`")]
    Malformed(String),
    #[error("is {0} but must not be negative")]
    Negative(String),
    #[error("is {0} but must be a whole number")]
    NotWhole(String),
    #[error("is {0}, which is too large")]
    TooLarge(String),
}

impl Quantity {
    /// Reads a quantity as the API server sends it: a string, or a number where nobody wrote quotes.
    pub fn from_json(value: &Value) -> Result<Self, QuantityError> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(QuantityError::NotScalar),
        }
    }

    /// Reads every spelling that Kubernetes accepts: sign, fraction, `n u m k M G T P E`, `Ki` to `Ei`, exponent.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        let malformed = || QuantityError::Malformed(shown(text));
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let number = Decimal::parse(number).ok_or_else(malformed)?;
        let scale = Scale::parse(suffix).ok_or_else(malformed)?;
        let nanos = number.nanos(scale).ok_or_else(|| QuantityError::TooLarge(shown(text)))?;
        Ok(Self { nanos: if negative { -nanos } else { nanos } })
    }

    /// In billionths.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// In whole units, a fraction rounded away from zero as Kubernetes rounds it.
    pub fn rounded_up(self) -> i64 {
        let units = self.nanos.unsigned_abs().div_ceil(NANOS_PER_UNIT);
        // Within range by construction: `parse` refuses what is larger than MAX.
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        if self.nanos < 0 { -units } else { units }
    }

    const fn is_whole(self) -> bool {
        self.nanos.unsigned_abs().is_multiple_of(NANOS_PER_UNIT)
    }
}

/// Reads the amount of an extended resource: whole and not negative, whatever its spelling.
pub fn whole_amount(value: &Value) -> Result<u64, QuantityError> {
    let quantity = Quantity::from_json(value)?;
    let text = || match value {
        Value::String(text) => shown(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            shown(&value.to_string())
        }
    };
    if quantity.nanos < 0 {
        return Err(QuantityError::Negative(text()));
    }
    if !quantity.is_whole() {
        return Err(QuantityError::NotWhole(text()));
    }
    Ok(quantity.rounded_up().unsigned_abs())
}

/// User input as messages show it: in backticks, cut short, without control characters.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut cut: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        cut.push_str("...");
    }
    format!("`{cut}`")
}

/// The digits of a number without sign and suffix: `digits * 10^exponent`.
struct Decimal {
    digits: u128,
    exponent: i64,
}

impl Decimal {
    /// Twenty digits hold every amount (`i64::MAX` has nineteen), and times 2^60 they still fit the arithmetic. Further
    /// digits only say whether to round up.
    const MOST_DIGITS: u128 = 10_u128.pow(19);

    fn parse(number: &str) -> Option<Self> {
        let (mut digits, mut exponent, mut after_point, mut any, mut more) = (0_u128, 0_i64, false, false, false);
        for byte in number.bytes() {
            if byte == b'.' {
                if after_point {
                    return None;
                }
                after_point = true;
                continue;
            }
            any = true;
            let digit = u128::from(byte.checked_sub(b'0').filter(|digit| *digit <= 9)?);
            if digits < Self::MOST_DIGITS {
                digits = digits * 10 + digit;
                exponent -= i64::from(after_point);
            } else {
                more |= digit != 0;
                exponent += i64::from(!after_point);
            }
        }
        any.then_some(Self { digits: digits + u128::from(more), exponent })
    }

    /// `None` if it is above [`MAX`].
    fn nanos(self, scale: Scale) -> Option<i128> {
        let exponent = self.exponent.saturating_add(scale.exponent).saturating_add(9);
        let number = self.digits.checked_mul(scale.factor)?;
        let power = u32::try_from(exponent.unsigned_abs()).ok().and_then(|power| 10_u128.checked_pow(power));
        let nanos = match power {
            _ if number == 0 => 0,
            Some(power) if exponent >= 0 => number.checked_mul(power)?,
            Some(power) => number.div_ceil(power),
            None if exponent >= 0 => return None,
            None => 1, // something, however small, is rounded up
        };
        if nanos > MAX_NANOS {
            return None;
        }
        i128::try_from(nanos).ok()
    }
}

/// What a suffix multiplies by: `factor * 10^exponent`.
#[derive(Clone, Copy)]
struct Scale {
    factor: u128,
    exponent: i64,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let decimal = |exponent| Some(Self { factor: 1, exponent });
        let binary = |power| Some(Self { factor: 1_u128 << power, exponent: 0 });
        match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18), // before the exponent form: `1E` is exa, `1E3` a thousand
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            exponent => decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
        }
    }
}

/// The name of an extended resource, as `nvidia.com/gpu`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ResourceName(String);

impl ResourceName {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Is this something that computes? Quotas and policies mean these by "accelerators".
///
/// Everything under `nvidia.com/` counts unless it is known to be something else, because the device plugin can be
/// configured to announce GPUs under other names. What is left out there: HAMi's shares of a card that `nvidia.com/gpu`
/// counts already, and network devices.
pub fn is_accelerator(name: &str) -> bool {
    let Some((domain, device)) = name.split_once('/') else { return false };
    match domain {
        "nvidia.com" => {
            !["gpumem", "gpumem-percentage", "gpucores", "priority"].contains(&device)
                && !["hostdev", "rdma", "sriov"].iter().any(|prefix| device.starts_with(prefix))
        }
        "aws.amazon.com" => device.starts_with("neuron"),
        "amd.com" => device.starts_with("gpu"),
        "habana.ai" => device.starts_with("gaudi"),
        "gpu.intel.com" => device.starts_with("i915") || device.starts_with("xe"),
        "google.com" => device == "tpu",
        // A device class by its name, whatever it stands for: the claim behind it is made out of sight.
        "deviceclass.resource.kubernetes.io" => true,
        _ => false,
    }
}

/// May the ledger count this? Accelerators, and EFA interfaces, of which a node has as few.
pub fn is_counted(name: &str) -> bool {
    name == "vpc.amazonaws.com/efa" || is_accelerator(name)
}

/// How much of each resource. What is zero is left out, so that two ways to ask for nothing are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Amounts(
    #[serde(deserialize_with = "normal")]
    #[schemars(with = "BTreeMap<String, u64>")]
    BTreeMap<ResourceName, u64>,
);

impl Amounts {
    pub fn new() -> Self {
        Self::default()
    }

    /// So much of one resource.
    pub fn of(name: ResourceName, amount: u64) -> Self {
        let mut amounts = Self::new();
        amounts.set(name, amount);
        amounts
    }

    /// Replaces the amount of one resource; above [`MAX`] it is [`MAX`].
    pub fn set(&mut self, name: ResourceName, amount: u64) {
        if amount == 0 {
            self.0.remove(&name);
        } else {
            self.0.insert(name, amount.min(MAX));
        }
    }

    /// Zero if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, u64)> {
        self.0.iter().map(|(name, amount)| (name, *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `None` if a sum is above [`MAX`].
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (name, amount) in &other.0 {
            let amount = sum.get(name.as_str()).checked_add(*amount).filter(|amount| *amount <= MAX)?;
            sum.set(name.clone(), amount);
        }
        Some(sum)
    }

    /// A sum above [`MAX`] is [`MAX`]: more than any limit.
    pub fn saturating_add(&self, other: &Self) -> Self {
        self.merged(other, u64::saturating_add)
    }

    /// What is left after taking `other` away, never below zero.
    pub fn saturating_sub(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        for (name, amount) in &other.0 {
            let left = rest.get(name.as_str()).saturating_sub(*amount);
            rest.set(name.clone(), left);
        }
        rest
    }

    /// The larger of the two, resource by resource.
    pub fn max(&self, other: &Self) -> Self {
        self.merged(other, u64::max)
    }

    /// The smaller of the two, resource by resource.
    pub fn min(&self, other: &Self) -> Self {
        self.iter().map(|(name, amount)| (name.clone(), amount.min(other.get(name.as_str())))).collect()
    }

    /// So many times as much; `None` if that is above [`MAX`].
    pub fn checked_scale(&self, count: u64) -> Option<Self> {
        let mut scaled = Self::new();
        for (name, amount) in &self.0 {
            scaled.set(name.clone(), amount.checked_mul(count).filter(|amount| *amount <= MAX)?);
        }
        Some(scaled)
    }

    /// So many times as much, [`MAX`] at most.
    pub fn saturating_scale(&self, count: u64) -> Self {
        let mut scaled = Self::new();
        for (name, amount) in &self.0 {
            scaled.set(name.clone(), amount.saturating_mul(count));
        }
        scaled
    }

    /// Is there no resource of which this has more than `limit`? What `limit` does not name it limits to zero.
    pub fn fits_within(&self, limit: &Self) -> bool {
        self.0.iter().all(|(name, amount)| *amount <= limit.get(name.as_str()))
    }

    /// Accelerators of every kind together, one slice of a GPU counted as one.
    pub fn accelerators(&self) -> u64 {
        let accelerators = self.0.iter().filter(|(name, _)| is_accelerator(name.as_str()));
        accelerators.fold(0_u64, |sum, (_, amount)| sum.saturating_add(*amount)).min(MAX)
    }

    fn merged(&self, other: &Self, merge: impl Fn(u64, u64) -> u64) -> Self {
        let mut merged = self.clone();
        for (name, amount) in &other.0 {
            let amount = merge(merged.get(name.as_str()), *amount);
            merged.set(name.clone(), amount);
        }
        merged
    }
}

impl FromIterator<(ResourceName, u64)> for Amounts {
    /// A name that comes twice is added up.
    fn from_iter<I: IntoIterator<Item = (ResourceName, u64)>>(items: I) -> Self {
        let mut amounts = Self::new();
        for (name, amount) in items {
            let sum = amounts.get(name.as_str()).saturating_add(amount);
            amounts.set(name, sum);
        }
        amounts
    }
}

/// Stored amounts come from outside: the invariants are made anew.
fn normal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<ResourceName, u64>, D::Error> {
    let stored: BTreeMap<ResourceName, u64> = serde::Deserialize::deserialize(deserializer)?;
    Ok(stored.into_iter().collect::<Amounts>().0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const UNIT: i128 = 1_000_000_000;

    #[test]
    fn quantities_in_every_spelling() {
        let table: &[(&str, i128)] = &[
            ("0", 0),
            ("1", UNIT),
            ("+1", UNIT),
            ("-1", -UNIT),
            ("1.0", UNIT),
            ("1.", UNIT),
            (".5", UNIT / 2),
            ("1.5", 3 * UNIT / 2),
            ("007", 7 * UNIT),
            ("2000m", 2 * UNIT),
            ("500m", UNIT / 2),
            ("1u", 1000),
            ("1n", 1),
            ("0.1n", 1),
            ("0.0n", 0),
            ("1e-30", 1),
            ("-0.1n", -1),
            ("1k", 1000 * UNIT),
            ("1M", 1_000_000 * UNIT),
            ("1G", 1_000_000_000 * UNIT),
            ("1T", 1_000_000_000_000 * UNIT),
            ("1P", 1_000_000_000_000_000 * UNIT),
            ("1E", 1_000_000_000_000_000_000 * UNIT),
            ("1Ki", 1024 * UNIT),
            ("1Mi", (1 << 20) * UNIT),
            ("1Gi", (1 << 30) * UNIT),
            ("1Ti", (1 << 40) * UNIT),
            ("1Pi", (1 << 50) * UNIT),
            ("1Ei", (1 << 60) * UNIT),
            ("7.5Ei", 15 * (1 << 59) * UNIT),
            ("1e0", UNIT),
            ("1E0", UNIT),
            ("1e3", 1000 * UNIT),
            ("1E+3", 1000 * UNIT),
            ("15e-1", 3 * UNIT / 2),
            ("0e999999", 0),
            ("0.008k", 8 * UNIT),
            ("9223372036854775807", i128::from(i64::MAX) * UNIT),
            ("1.0000000000000000000000000000", UNIT),
            ("10000000000000000000000000000000000000000e-40", UNIT),
            // 1.0001 * 2^30 is 1073849198.1824.
            ("1.0001Gi", 1_073_849_198_182_400_000),
        ];
        for (text, nanos) in table {
            assert_eq!(Quantity::parse(text).map(Quantity::nanos), Ok(*nanos), "{text}");
        }
    }

    #[test]
    fn fractions_round_away_from_zero() {
        let table =
            [("1.5", 2), ("500m", 1), ("0.1n", 1), ("1.0001Gi", 1_073_849_199), ("-1.5", -2), ("2", 2), ("0", 0)];
        for (text, units) in table {
            assert_eq!(Quantity::parse(text).map(Quantity::rounded_up), Ok(units), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity() {
        for text in
            ["x", "1x", "1 ", " 1", "1ki", "1KI", "1e", "1e1.5", "1.2.3", ".", "-", "+", "--1", "1_000", "0x1", "١"]
        {
            assert_eq!(Quantity::parse(text), Err(QuantityError::Malformed(shown(text))), "{text}");
        }
        for text in ["12E", "9223372036854775808", "8Ei", "1e19", "1e99999999999", "18446744073709551616"] {
            assert_eq!(Quantity::parse(text), Err(QuantityError::TooLarge(shown(text))), "{text}");
        }
        // Beyond what Kubernetes itself reads as an exponent.
        assert!(matches!(Quantity::parse("1e99999999999999999999"), Err(QuantityError::Malformed(_))));
    }

    #[test]
    fn extended_resources_are_whole() {
        for value in [json!(2), json!("2"), json!("2.0"), json!("2000m"), json!("2e0"), json!(2.0), json!("0.002k")] {
            assert_eq!(whole_amount(&value), Ok(2), "{value}");
        }
        assert_eq!(whole_amount(&json!("4Gi")), Ok(4 << 30));
        let table = [
            (json!("0.5"), "is `0.5` but must be a whole number"),
            (json!("100m"), "is `100m` but must be a whole number"),
            (json!(0.5), "is `0.5` but must be a whole number"),
            (json!("-1"), "is `-1` but must not be negative"),
            (json!(-1), "is `-1` but must not be negative"),
            (json!(""), "is empty but must be a quantity"),
            (json!("all"), "is `all` but must be a quantity, such as `1`, `500m` or `2Gi`"),
            (json!([1]), "must be a number or a string"),
            (json!(null), "must be a number or a string"),
            (json!(true), "must be a number or a string"),
            (json!(u64::MAX), "is `18446744073709551615`, which is too large"),
        ];
        for (value, message) in table {
            assert_eq!(whole_amount(&value).unwrap_err().to_string(), message, "{value}");
        }
    }

    #[test]
    fn long_input_is_cut_in_messages() {
        assert_eq!(shown(&"9".repeat(200)), format!("`{}...`", "9".repeat(80)));
        assert_eq!(shown("a\nb"), "`a\\nb`");
    }

    #[test]
    fn accelerators_and_what_is_counted() {
        for name in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.5gb",
            "nvidia.com/mig-3g.40gb.shared",
            "aws.amazon.com/neuron",
            "aws.amazon.com/neuroncore",
            "aws.amazon.com/neurondevice",
            "amd.com/gpu",
            "habana.ai/gaudi",
            "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        ] {
            assert!(is_accelerator(name) && is_counted(name), "{name}");
        }
        for name in
            ["cpu", "memory", "hugepages-2Mi", "nvidia.com/gpumem", "nvidia.com/rdma_shared_device_a", "gpu", ""]
        {
            assert!(!is_accelerator(name) && !is_counted(name), "{name}");
        }
        assert!(!is_accelerator("vpc.amazonaws.com/efa"));
        assert!(is_counted("vpc.amazonaws.com/efa"));
    }

    fn gpus(amount: u64) -> Amounts {
        Amounts::of(ResourceName::new("nvidia.com/gpu"), amount)
    }

    #[test]
    fn amounts_stick_at_the_top() {
        assert_eq!(gpus(MAX).saturating_add(&gpus(1)), gpus(MAX));
        assert_eq!(gpus(MAX).checked_add(&gpus(1)), None);
        assert_eq!(gpus(2).saturating_scale(u64::MAX), gpus(MAX));
        assert_eq!(gpus(2).checked_scale(MAX), None);
        assert_eq!(gpus(u64::MAX), gpus(MAX));
    }

    #[test]
    fn nothing_is_left_out() {
        assert_eq!(gpus(0), Amounts::new());
        assert_eq!(gpus(3).saturating_scale(0), Amounts::new());
        assert_eq!(gpus(3).saturating_sub(&gpus(5)), Amounts::new());
        assert!(Amounts::new().fits_within(&Amounts::new()));
        assert!(!gpus(1).fits_within(&Amounts::new()));
    }

    #[test]
    fn stored_amounts_are_read_back_within_bounds() {
        let amounts: Amounts = serde_json::from_value(json!({"a/b": 0, "c/d": u64::MAX, "e/f": 7})).unwrap();
        assert_eq!(serde_json::to_value(&amounts).unwrap(), json!({"c/d": MAX, "e/f": 7}));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-+]?[0-9.]{0,45}([a-zA-Z]{0,2}|[eE][-+]?[0-9]{1,12})|.*") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn whole_numbers_are_kept(number in 0..=MAX) {
            prop_assert_eq!(whole_amount(&json!(number)), Ok(number));
            prop_assert_eq!(whole_amount(&json!(format!("{number}.000"))), Ok(number));
        }
    }
}
