//! What Tandem's processes agree on. No torch, no CUDA.
//!
//! # Invariants (docs/architecture.md names the tests that hold them)
//! - **A1** launcher and common link neither torch nor CUDA.
//! - **A2** workers do not know each other.
//! - **A3** only the launcher creates, unlinks and reclaims shared memory.
//! - **A4** each shared word has one writer or is a labelled compare-exchange.
//! - **A5** control messages carry no tensors.
//! - **A6** a lease is returned exactly once, also after a crash.
//! - **A7** the inspector maps read-only and changes no byte.
//! - **A8** nothing flows from drafter to target at run time.
//! - **A9** the same configuration and seed under `strict` give the same losses (on a GPU nearly).
//! - **A10** a checkpoint is whole or absent.
//! - **A11** the training forward equals the inference step.
//! - **A12** every row exactly once per epoch.

pub mod arena;
pub mod config;
pub mod evaluation;
pub mod exit;
pub mod footprint;
pub mod ids;
pub mod launched;
pub mod line;
pub mod manifest;
pub mod model_config;
pub mod queue;
pub mod reduce;
pub mod run_plan;
pub mod shm;
pub mod shutdown;
mod sync;
pub mod telemetry;
pub mod wait;
pub mod watchdog;
pub mod wire;

#[cfg(test)]
mod testing;
