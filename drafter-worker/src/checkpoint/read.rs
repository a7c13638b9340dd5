//! Reading: first weights of a run, and going on from a checkpoint.

use std::path::Path;

use common::config::Config;
use common::exit::AnyError;
use common::manifest::Manifest;
use common::run_plan::RunPlan;
use model::drafter::Drafter;
use tch::{Device, Kind};

use super::{CheckpointError, STATE_FILE};
use model::optimizer::AdamW;

/// The drafter a run begins with: `drafter.draft_checkpoint_path` if given, else random weights from the seed.
///
/// # Errors
/// The warm-start folder does not hold this drafter.
pub(crate) fn first_drafter(config: &Config, plan: &RunPlan, device: Device, kind: Kind) -> Result<Drafter, AnyError> {
    match &config.drafter.draft_checkpoint_path {
        Some(folder) => Ok(Drafter::load(folder, &plan.draft, device, kind)?),
        None => Ok(Drafter::new(&plan.draft, config.training.seed, device, kind)?),
    }
}

/// Loads masters and moments of `folder` into drafter and optimizer; returns where training stood.
///
/// # Errors
/// The checkpoint is of another drafter or cannot be read.
pub(crate) fn restore(
    folder: &Path,
    plan: &RunPlan,
    drafter: &mut Drafter,
    optimizer: &mut AdamW,
) -> Result<Manifest, AnyError> {
    let manifest = Manifest::read(folder)?;
    let expected = plan.draft.mask_token_id;
    if manifest.mask_token_id != expected {
        let found = manifest.mask_token_id;
        return Err(CheckpointError::MaskToken { path: folder.into(), found, expected }.into());
    }
    optimizer.load(&folder.join(STATE_FILE), drafter.parameters_mut())?;
    Ok(manifest)
}
