//! The drafter's weights: named leaf tensors that are views into one flat tensor, and gradients that are views into another.
//!
//! The optimizer, the norm for clipping and the sum over drafters then each work on one tensor instead of dozens, and
//! a backward pass adds up in place. Names are sorted, so the flat order is the same everywhere. Gradients of many batches
//! are summed in float32, whatever the drafter computes in.

use std::collections::BTreeMap;

use tch::{Device, Kind, TchError, Tensor};

/// Weights and their gradients, all of one type on one device.
pub struct Parameters {
    named: Vec<(String, Tensor)>,
    values: Tensor,
    /// What backward passes add to, in the weights' type.
    fresh: Tensor,
    /// The sum so far, float32; `fresh` itself when that is float32.
    gradient: Tensor,
}

impl Parameters {
    /// All zero, from names and shapes; names sorted.
    ///
    /// # Errors
    /// No memory for weights and gradients.
    pub fn zeros(shapes: &[(String, Vec<i64>)], kind: Kind, device: Device) -> Result<Parameters, TchError> {
        let total: i64 = shapes.iter().map(|(_, shape)| shape.iter().product::<i64>()).sum();
        let values = Tensor::f_zeros(total, (kind, device))?;
        let fresh = values.f_zeros_like()?;
        let gradient = match kind {
            Kind::Float => fresh.shallow_clone(),
            _ => Tensor::f_zeros(total, (Kind::Float, device))?,
        };
        let mut start = 0;
        let mut named = Vec::new();
        for (name, shape) in shapes {
            let length = shape.iter().product();
            let view = |flat: &Tensor| flat.narrow(0, start, length).view(shape.as_slice()).detach();
            let leaf = view(&values).set_requires_grad(true);
            // A gradient exists only after a backward pass; this one's memory is then swapped for the flat tensor's.
            leaf.sum(kind).f_backward()?;
            leaf.grad().f_set_data(&view(&fresh))?;
            named.push((name.clone(), leaf));
            start += length;
        }
        Ok(Parameters { named, values, fresh, gradient })
    }

    /// Leaf tensors by name, sorted.
    pub fn named(&self) -> &[(String, Tensor)] {
        &self.named
    }

    /// The leaf tensor of a name that the format has.
    pub(super) fn get(&self, name: &str) -> Tensor {
        let index = self.named.binary_search_by(|(found, _)| found.as_str().cmp(name));
        self.named[index.expect("the format lists every name that the drafter asks for")].1.shallow_clone()
    }

    /// All weights in the order of their names, [number of parameters].
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The gradient of all weights in the same order, float32, summed over backward passes.
    pub fn gradient(&self) -> &Tensor {
        &self.gradient
    }

    /// Replaces the gradient, by the sum over drafters for one.
    pub fn set_gradient(&mut self, gradient: &Tensor) {
        self.gradient.copy_(gradient);
    }

    /// Forgets the gradient.
    pub fn zero_gradient(&mut self) {
        let _ = self.gradient.zero_();
    }

    /// Runs the backward pass of `output` from the gradient with respect to it, and adds the weights' gradients up.
    pub fn backward(&mut self, output: &Tensor, d_output: &Tensor) {
        // The derivative of sum(x * d) with respect to x is d.
        (output * d_output).sum(output.kind()).backward();
        if self.fresh.kind() != Kind::Float {
            self.gradient += &self.fresh;
            let _ = self.fresh.zero_();
        }
    }

    /// Overwrites all weights from a flat tensor of any floating type.
    pub fn assign(&mut self, values: &Tensor) {
        self.values.copy_(values);
    }

    /// Overwrites weights by name.
    pub(super) fn assign_named(&mut self, tensors: &BTreeMap<String, Tensor>) {
        tch::no_grad(|| {
            for (name, leaf) in &mut self.named {
                leaf.copy_(&tensors[name]);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(kind: Kind) -> Parameters {
        let shapes = [("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![3])];
        Parameters::zeros(&shapes, kind, Device::Cpu).unwrap()
    }

    fn list(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.view(-1)).unwrap()
    }

    #[test]
    fn weights_are_views_of_the_flat_tensor() {
        let mut parameters = two(Kind::Float);
        parameters.assign(&Tensor::arange(7, (Kind::Float, Device::Cpu)));
        assert_eq!(list(&parameters.get("a")), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(list(&parameters.get("b")), [4.0, 5.0, 6.0]);
        let named =
            [("a".to_owned(), Tensor::ones([2, 2], (Kind::Float, Device::Cpu))), ("b".to_owned(), Tensor::from(2.0))];
        parameters.assign_named(&BTreeMap::from(named));
        assert_eq!(list(parameters.values()), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn backward_passes_add_up_in_the_flat_gradient() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut parameters = two(kind);
            assert_eq!(list(parameters.gradient()), [0.0; 7]);
            // 256 + 1 is no bfloat16: the sum over passes must be kept wider.
            for d_output in [256f32, 1.0] {
                let output = parameters.get("b") * Tensor::from_slice(&[1f32, 2.0, 3.0]).to_kind(kind);
                parameters.backward(&output, &Tensor::full([3], f64::from(d_output), (kind, Device::Cpu)));
            }
            assert_eq!(list(parameters.gradient()), [0.0, 0.0, 0.0, 0.0, 257.0, 514.0, 771.0]);
            parameters.zero_gradient();
            let output = parameters.get("a");
            parameters.backward(&output, &output.ones_like());
            assert_eq!(list(parameters.gradient()), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        }
    }
}
