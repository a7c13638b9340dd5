//! The drafter's weights: one flat tensor, and their gradients: another. What the autograd graph sees are leaves over parts of
//! the first.
//!
//! The optimizer, the norm for clipping and the sum over drafters each work on one tensor instead of dozens. A leaf may
//! span neighbouring matrices (one product then serves all), or the same matrices of all layers, and leaves may overlap:
//! each brings a gradient of its own, and all are added up. Gradients are summed in float32, whatever the drafter computes in.

use std::collections::BTreeMap;

use tch::{Device, Kind, TchError, Tensor};

/// Weights and their gradients, on one device.
pub struct Parameters {
    named: Vec<(String, Tensor)>,
    values: Tensor,
    gradient: Tensor,
    leaves: Vec<Leaf>,
}

/// A part of the weights in the autograd graph, and the same part of the gradient.
struct Leaf {
    weight: Tensor,
    gradient: Tensor,
}

impl Parameters {
    /// All zero, laid out one after another in the order of `shapes`.
    ///
    /// # Errors
    /// No memory for weights and gradients.
    pub fn zeros(shapes: &[(String, Vec<i64>)], kind: Kind, device: Device) -> Result<Parameters, TchError> {
        let total: i64 = shapes.iter().map(|(_, shape)| shape.iter().product::<i64>()).sum();
        let values = Tensor::f_zeros(total, (kind, device))?;
        let gradient = Tensor::f_zeros(total, (Kind::Float, device))?;
        let mut parameters = Parameters { named: Vec::new(), values, gradient, leaves: Vec::new() };
        parameters.named = parameters.views(shapes);
        Ok(parameters)
    }

    fn views(&self, shapes: &[(String, Vec<i64>)]) -> Vec<(String, Tensor)> {
        let views = shapes.iter().scan(0, |start, (name, shape)| {
            let length = shape.iter().product();
            let view = self.values.narrow(0, *start, length).view(shape.as_slice());
            *start += length;
            Some((name.clone(), view))
        });
        views.collect()
    }

    /// Weights by name, in their flat order: views.
    pub fn named(&self) -> &[(String, Tensor)] {
        &self.named
    }

    /// The gradient by name, float32, in the same order: views.
    pub fn named_gradients(&self) -> impl Iterator<Item = (&str, Tensor)> {
        self.named.iter().map(|(name, weight)| {
            (name.as_str(), self.gradient.as_strided(weight.size(), weight.stride(), offset(weight, &self.values)))
        })
    }

    /// A leaf over the parameter `name`, or over all of `names` as one matrix: they lie next to each other.
    pub(super) fn leaf(&mut self, names: &[String]) -> Tensor {
        let (start, shape) = self.span(names);
        let strides = contiguous(&shape);
        self.add_leaf(start, &shape, &strides)
    }

    /// A leaf [runs, ..] over several such runs of the same shapes at equal distances.
    pub(super) fn stacked_leaf(&mut self, runs: &[Vec<String>]) -> Tensor {
        let spans: Vec<_> = runs.iter().map(|names| self.span(names)).collect();
        let (start, shape) = &spans[0];
        let distance = spans.get(1).map_or(0, |(second, _)| second - start);
        for (index, span) in spans.iter().enumerate() {
            assert_eq!(*span, (start + index as i64 * distance, shape.clone()), "layers lie at equal distances");
        }
        let sizes = [&[spans.len() as i64], shape.as_slice()].concat();
        let strides = [&[distance], contiguous(shape).as_slice()].concat();
        self.add_leaf(*start, &sizes, &strides)
    }

    fn add_leaf(&mut self, start: i64, shape: &[i64], strides: &[i64]) -> Tensor {
        let view = |flat: &Tensor| flat.as_strided(shape, strides, start).detach();
        let weight = view(&self.values).set_requires_grad(true);
        self.leaves.push(Leaf { weight: weight.shallow_clone(), gradient: view(&self.gradient) });
        weight
    }

    /// Where neighbouring parameters begin in the flat tensors, and their shape when their rows are put together.
    fn span(&self, names: &[String]) -> (i64, Vec<i64>) {
        let first = self.named.iter().position(|(name, _)| *name == names[0]);
        let found = &self.named[first.expect("the format lists every name that the drafter asks for")..][..names.len()];
        assert!(found.iter().map(|(name, _)| name).eq(names), "parameters of one leaf are neighbours");
        let mut shape = found[0].1.size();
        shape[0] = found.iter().map(|(_, weight)| weight.size()[0]).sum();
        (offset(&found[0].1, &self.values), shape)
    }

    /// All weights in their flat order, [number of parameters].
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
        let weights: Vec<&Tensor> = self.leaves.iter().map(|leaf| &leaf.weight).collect();
        // The derivative of sum(x * d) with respect to x is d.
        let product = (output * d_output).sum(output.kind());
        let gradients = Tensor::run_backward(&[product], &weights, false, false);
        for (leaf, gradient) in self.leaves.iter_mut().zip(gradients) {
            if gradient.defined() {
                leaf.gradient += gradient;
            }
        }
    }

    /// Overwrites all weights from a flat tensor of any floating type.
    pub fn assign(&mut self, values: &Tensor) {
        self.values.copy_(values);
    }

    /// Overwrites weights by name.
    pub(super) fn assign_named(&mut self, tensors: &BTreeMap<String, Tensor>) {
        for (name, weight) in &mut self.named {
            weight.copy_(&tensors[name]);
        }
    }
}

/// Elements between the start of `flat` and of a view of it.
fn offset(view: &Tensor, flat: &Tensor) -> i64 {
    let bytes = view.data_ptr() as usize - flat.data_ptr() as usize;
    (bytes / flat.kind().elt_size_in_bytes()) as i64
}

fn contiguous(shape: &[i64]) -> Vec<i64> {
    (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(kind: Kind) -> Parameters {
        let shapes = [("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![3])];
        Parameters::zeros(&shapes, kind, Device::Cpu).unwrap()
    }

    fn leaf(parameters: &mut Parameters, names: &[&str]) -> Tensor {
        parameters.leaf(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    fn list(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.reshape(-1)).unwrap()
    }

    #[test]
    fn weights_are_views_of_the_flat_tensor() {
        let mut parameters = two(Kind::Float);
        let (a, b) = (leaf(&mut parameters, &["a"]), leaf(&mut parameters, &["b"]));
        parameters.assign(&Tensor::arange(7, (Kind::Float, Device::Cpu)));
        assert_eq!(list(&a), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(list(&b), [4.0, 5.0, 6.0]);
        let named =
            [("a".to_owned(), Tensor::ones([2, 2], (Kind::Float, Device::Cpu))), ("b".to_owned(), Tensor::from(2.0))];
        parameters.assign_named(&BTreeMap::from(named));
        assert_eq!(list(parameters.values()), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn backward_passes_add_up_in_the_flat_gradient() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut parameters = two(kind);
            let (a, b) = (leaf(&mut parameters, &["a"]), leaf(&mut parameters, &["b"]));
            assert_eq!(list(parameters.gradient()), [0.0; 7]);
            // 256 + 1 is no bfloat16: the sum over passes must be kept wider.
            for d_output in [256f32, 1.0] {
                let output = &b * Tensor::from_slice(&[1f32, 2.0, 3.0]).to_kind(kind);
                parameters.backward(&output, &Tensor::full([3], f64::from(d_output), (kind, Device::Cpu)));
            }
            assert_eq!(list(parameters.gradient()), [0.0, 0.0, 0.0, 0.0, 257.0, 514.0, 771.0]);
            parameters.zero_gradient();
            let output = &a * 1.0;
            parameters.backward(&output, &output.ones_like());
            assert_eq!(list(parameters.gradient()), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
            let named: Vec<_> =
                parameters.named_gradients().map(|(name, part)| (name.to_owned(), list(&part))).collect();
            assert_eq!(named, [("a".to_owned(), vec![1.0; 4]), ("b".to_owned(), vec![0.0; 3])]);
        }
    }

    /// A leaf over neighbours and one over the same parameter of all layers share memory; their gradients add up.
    #[test]
    fn leaves_may_span_neighbours_and_layers_and_overlap() {
        let names = ["0.q", "0.k", "0.o", "1.q", "1.k", "1.o"].map(str::to_owned);
        let shapes: Vec<_> = names.iter().map(|name| (name.clone(), vec![1, 2])).collect();
        let mut parameters = Parameters::zeros(&shapes, Kind::Float, Device::Cpu).unwrap();
        let first = leaf(&mut parameters, &["0.q", "0.k"]);
        let keys = parameters.stacked_leaf(&[vec![names[1].clone()], vec![names[4].clone()]]);
        parameters.assign(&Tensor::arange(12, (Kind::Float, Device::Cpu)));
        assert_eq!((first.size(), list(&first)), (vec![2, 2], vec![0.0, 1.0, 2.0, 3.0]));
        assert_eq!((keys.size(), list(&keys)), (vec![2, 1, 2], vec![2.0, 3.0, 8.0, 9.0]));
        let output = Tensor::cat(&[&(&first * 2.0).view(-1), &keys.reshape(-1)], 0);
        parameters.backward(&output, &output.ones_like());
        assert_eq!(list(parameters.gradient()), [2.0, 2.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
