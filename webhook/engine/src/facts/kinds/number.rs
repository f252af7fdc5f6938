//! How many: the small arithmetic in which a kind's configuration says how many pods a template makes.
//!
//! ```yaml
//! replicas: /spec/replicas                               # the number that stands there
//! replicas: {path: /spec/replicas, default: 1}           # or this where none does
//! replicas: {multiply: [/spec/replicas, /spec/hosts]}    # also add, subtract, smallest, largest
//! ```

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::pattern::Pattern;
use crate::amounts::{MAX, shown};
use crate::facts::FactsError;
use crate::facts::json::count;

/// A number, read from an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Number {
    Fixed(u64),
    Field(Field),
    /// Unsaid, as soon as one factor is.
    Multiply(Vec<Number>),
    /// Of these four, what is unsaid is left out.
    Add(Vec<Number>),
    /// The first less the others, and never below none.
    Subtract(Vec<Number>),
    Smallest(Vec<Number>),
    Largest(Vec<Number>),
}

/// A number that stands in the object.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    path: Pattern,
    default: Option<u64>,
    /// This number stands for none: an API server may have filled it in.
    none: Option<u64>,
    /// `25%` is a share of this, rounded up.
    percent_of: Option<Box<Number>>,
}

/// The object, and the template about which is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) object: &'a Value,
    pub(super) template: &'a Pattern,
    pub(super) place: &'a [String],
}

impl Number {
    /// `None` where the object does not say.
    pub(super) fn read(&self, scope: &Scope<'_>) -> Result<Option<u64>, FactsError> {
        let values = self.values(scope)?;
        Ok(values.iter().copied().reduce(add))
    }

    /// Several where a `*` leads to several.
    fn values(&self, scope: &Scope<'_>) -> Result<Vec<u64>, FactsError> {
        let of_all = |numbers: &[Self]| -> Result<Vec<u64>, FactsError> {
            let values: Result<Vec<_>, _> = numbers.iter().map(|number| number.values(scope)).collect();
            Ok(values?.concat())
        };
        Ok(match self {
            Self::Fixed(number) => vec![*number],
            Self::Field(field) => field.values(scope)?,
            Self::Multiply(factors) => {
                let factors: Result<Vec<_>, _> = factors.iter().map(|factor| factor.read(scope)).collect();
                let product = factors?.into_iter().try_fold(1, |product, factor| Some(multiply(product, factor?)));
                product.into_iter().collect()
            }
            Self::Add(numbers) => of_all(numbers)?.into_iter().reduce(add).into_iter().collect(),
            Self::Subtract(numbers) => of_all(numbers)?.into_iter().reduce(u64::saturating_sub).into_iter().collect(),
            Self::Smallest(numbers) => of_all(numbers)?.into_iter().min().into_iter().collect(),
            Self::Largest(numbers) => of_all(numbers)?.into_iter().max().into_iter().collect(),
        })
    }

    /// Every pattern in it changed.
    pub(super) fn map(&self, change: &dyn Fn(&Pattern) -> Pattern) -> Self {
        let all = |numbers: &[Self]| numbers.iter().map(|number| number.map(change)).collect();
        match self {
            Self::Fixed(number) => Self::Fixed(*number),
            Self::Field(Field { path, default, none, percent_of }) => Self::Field(Field {
                path: change(path),
                default: *default,
                none: *none,
                percent_of: percent_of.as_ref().map(|number| Box::new(number.map(change))),
            }),
            Self::Multiply(numbers) => Self::Multiply(all(numbers)),
            Self::Add(numbers) => Self::Add(all(numbers)),
            Self::Subtract(numbers) => Self::Subtract(all(numbers)),
            Self::Smallest(numbers) => Self::Smallest(all(numbers)),
            Self::Largest(numbers) => Self::Largest(all(numbers)),
        }
    }
}

impl Field {
    fn values(&self, scope: &Scope<'_>) -> Result<Vec<u64>, FactsError> {
        let mut values = Vec::new();
        for found in self.path.beside(scope.template, scope.place).find(scope.object)? {
            let value = match (found.value, &self.percent_of) {
                (Value::String(text), Some(whole)) => percent(text).map(|percent| (percent, whole.as_ref())),
                (value, _) => {
                    values.push(count(value).map_err(|problem| FactsError { pointer: found.pointer(), problem })?);
                    continue;
                }
            };
            let (percent, whole) = value.map_err(|problem| FactsError { pointer: found.pointer(), problem })?;
            values.push(share_rounded_up(percent, whole.read(scope)?.unwrap_or(0)));
        }
        values.retain(|value| Some(*value) != self.none);
        if values.is_empty() {
            values.extend(self.default);
        }
        Ok(values)
    }
}

fn add(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(MAX)
}

fn multiply(a: u64, b: u64) -> u64 {
    a.saturating_mul(b).min(MAX)
}

/// `25%` as a number.
pub(in crate::facts) fn percent(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
    percent.ok_or_else(|| format!("is {} but must be a number or a percentage", shown(text)))
}

pub(in crate::facts) fn share_rounded_up(percent: u32, whole: u64) -> u64 {
    let share = (u128::from(whole) * u128::from(percent)).div_ceil(100);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// A map as it is typed.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Typed {
    path: Option<Pattern>,
    default: Option<u64>,
    none: Option<u64>,
    percent_of: Option<Box<Number>>,
    multiply: Option<Vec<Number>>,
    add: Option<Vec<Number>>,
    subtract: Option<Vec<Number>>,
    smallest: Option<Vec<Number>>,
    largest: Option<Vec<Number>>,
}

impl TryFrom<Typed> for Number {
    type Error = &'static str;

    fn try_from(typed: Typed) -> Result<Self, Self::Error> {
        let Typed { path, default, none, percent_of, multiply, add, subtract, smallest, largest } = typed;
        let only_beside_a_path = path.is_none() && (default.is_some() || none.is_some() || percent_of.is_some());
        let mut said = [
            path.map(|path| Self::Field(Field { path, default, none, percent_of })),
            multiply.map(Self::Multiply),
            add.map(Self::Add),
            subtract.map(Self::Subtract),
            smallest.map(Self::Smallest),
            largest.map(Self::Largest),
        ]
        .into_iter()
        .flatten();
        match (said.next(), said.next()) {
            (Some(number), None) if !only_beside_a_path => Ok(number),
            _ => Err(
                "a number is one of path (with default, none, percentOf), multiply, add, subtract, smallest, largest",
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadNumber)
    }
}

struct ReadNumber;

impl<'de> Visitor<'de> for ReadNumber {
    type Value = Number;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number, a JSON pointer or a map such as {multiply: [...]}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
        Ok(Number::Fixed(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
        u64::try_from(number).map(Number::Fixed).map_err(|_| E::custom("a number of pods is not negative"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
        let path = Pattern::try_from(text.to_owned()).map_err(E::custom)?;
        Ok(Number::Field(Field { path, default: None, none: None, percent_of: None }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Number, A::Error> {
        let typed = Typed::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        Number::try_from(typed).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(number: &str, object: &Value) -> Result<Option<u64>, String> {
        let number: Number = serde_saphyr::from_str(number).map_err(|error| error.to_string())?;
        let template = Pattern::try_from("/spec/groups/*/template".to_owned())?;
        let place = ["spec", "groups", "1", "template"].map(str::to_owned);
        number.read(&Scope { object, template: &template, place: &place }).map_err(|error| error.to_string())
    }

    #[test]
    fn each_way_to_say_a_number() {
        let object = json!({"spec": {
            "replicas": 4,
            "sizes": [2, 7, 5],
            "max": 2_147_483_647,
            "surge": "30%",
            "groups": [{"hosts": 8}, {"hosts": 3}],
        }});
        for (number, expected) in [
            ("3", Some(3)),
            ("/spec/replicas", Some(4)),
            ("/spec/none", None),
            ("{path: /spec/none, default: 1}", Some(1)),
            ("{path: /spec/max, none: 2147483647}", None),
            ("{path: /spec/max, none: 2147483647, default: 9}", Some(9)),
            ("/spec/groups/*/hosts", Some(3)),
            ("{multiply: [/spec/replicas, /spec/groups/*/hosts]}", Some(12)),
            ("{multiply: [/spec/replicas, /spec/none]}", None),
            ("{add: [/spec/replicas, /spec/none, 2]}", Some(6)),
            ("{subtract: [/spec/replicas, 1]}", Some(3)),
            ("{subtract: [/spec/replicas, 9]}", Some(0)),
            ("{smallest: [/spec/replicas, /spec/none, 9]}", Some(4)),
            ("{largest: [/spec/replicas, /spec/sizes/*]}", Some(7)),
            ("{smallest: [/spec/none]}", None),
            ("{path: /spec/surge, percentOf: /spec/replicas}", Some(2)),
            ("{path: /spec/replicas, percentOf: 9}", Some(4)),
        ] {
            assert_eq!(read(number, &object), Ok(expected), "{number}");
        }
    }

    #[test]
    fn absurd_numbers_stick_or_are_refused() {
        let object = json!({"spec": {"most": MAX, "text": "4", "share": "some"}});
        assert_eq!(read("{multiply: [/spec/most, /spec/most]}", &object), Ok(Some(MAX)));
        assert_eq!(read("{add: [/spec/most, /spec/most]}", &object), Ok(Some(MAX)));
        assert_eq!(read("/spec/text", &object), Err("`/spec/text` must be a whole number".to_owned()));
        assert_eq!(
            read("{path: /spec/share, percentOf: 1}", &object),
            Err("`/spec/share` is `some` but must be a number or a percentage".to_owned())
        );
    }

    #[test]
    fn what_says_no_number_is_refused() {
        for number in
            ["{}", "-1", "spec", "{default: 1}", "{path: /a, add: [1]}", "{times: [1]}", "[1]", "{add: [1], none: 2}"]
        {
            assert!(read(number, &json!({})).is_err(), "{number}");
        }
    }
}
