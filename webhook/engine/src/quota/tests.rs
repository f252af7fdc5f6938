//! Each part of the ledger by itself; how they work together is the model's matter.

mod fence;
mod stored;
mod sums;
