//! The drafter against PyTorch: hidden states, loss and every parameter's gradient.
//!
//! Numbers and weights lie in `tests/golden/drafter`, made by `make_drafter_golden.py` beside it with a drafter that was
//! written apart from this one.

use std::collections::HashMap;
use std::path::Path;

use common::model_config::DraftConfig;
use model::drafter::{BlockPlan, Drafter, PackedRows, Weighting, loss};
use tch::{Device, Kind, Tensor};

/// Largest difference, relative to the largest expected number.
fn error(found: &Tensor, expected: &Tensor) -> f64 {
    let largest = expected.abs().max().double_value(&[]);
    (found - expected).abs().max().double_value(&[]) / largest
}

#[test]
fn hidden_states_loss_and_gradients_are_pytorchs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/drafter");
    let expected: HashMap<String, Tensor> =
        Tensor::read_safetensors(folder.join("expected.safetensors")).unwrap().into_iter().collect();
    let integers = |name: &str| Vec::<i64>::try_from(&expected[name]).unwrap();
    let token_ids: Vec<u32> = integers("token_ids").iter().map(|id| *id as u32).collect();
    let loss_mask: Vec<u8> = integers("loss_mask").iter().map(|flag| *flag as u8).collect();
    let document_offsets: Vec<u32> = integers("document_offsets").iter().map(|offset| *offset as u32).collect();
    let rows = PackedRows {
        token_ids: &token_ids,
        loss_mask: &loss_mask,
        document_offsets: &document_offsets,
        row_ids: &[0, 1],
    };
    let anchors: Vec<usize> = integers("anchors").iter().map(|anchor| *anchor as usize).collect();

    let config = DraftConfig::read(&folder).unwrap();
    let mut drafter = Drafter::load(&folder, &config, Device::Cpu, Kind::Float).unwrap();
    let mut options = drafter.plan_options();
    options.group_blocks = 2;
    let plan = BlockPlan::new(&rows, &anchors, &options);
    let noise = Tensor::embedding(&expected["embedding"], &plan.token_ids, -1, false, false);
    let hidden = drafter.forward(&expected["taps"], &noise, &plan);
    let places: Vec<i64> = plan.places.iter().map(|place| *place as i64).collect();
    let found = hidden.index_select(0, &Tensor::from_slice(&places));
    assert!(error(&found, &expected["hidden"]) < 1e-5, "hidden states: {}", error(&found, &expected["hidden"]));

    let parts = loss::block_loss(&hidden, &expected["head"], &plan, Weighting::Decay { gamma: 4.0 });
    let loss = parts.totals().loss();
    assert!((loss - expected["loss"].double_value(&[])).abs() < 1e-5 * loss, "loss {loss}");

    drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
    for (name, gradient) in drafter.parameters().named_gradients() {
        let error = error(&(gradient / parts.denominator), &expected[&format!("gradient.{name}")]);
        assert!(error < 2e-5, "gradient of {name}: {error}");
    }
}
