//! Keys and values of tokens already seen, for one sequence and all layers of a model.
//!
//! Layers append at the same length; [`KvCache::advance`] then makes the new tokens part of it. [`KvCache::crop`]
//! forgets tokens without touching memory.

use tch::{Device, Kind, TchError, Tensor};

/// Keys and values, [nkv, length, hd] a layer, in buffers that double when full.
pub struct KvCache {
    layers: Vec<LayerBuffers>,
    length: usize,
}

/// What a cache holds per token.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// nkv.
    pub heads: usize,
    /// hd.
    pub head_dim: usize,
}

struct LayerBuffers {
    keys: Tensor,   // [nkv, capacity, hd]
    values: Tensor, // as keys
}

impl KvCache {
    /// An empty cache with room for `capacity` tokens; more may come.
    ///
    /// # Errors
    /// No memory for it.
    pub fn new(shape: KvShape, capacity: usize, kind: Kind, device: Device) -> Result<KvCache, TchError> {
        let size = [shape.heads as i64, capacity as i64, shape.head_dim as i64];
        let buffer = || Tensor::f_empty(size, (kind, device));
        let layer = |_| Ok(LayerBuffers { keys: buffer()?, values: buffer()? });
        Ok(KvCache { layers: (0..shape.layers).map(layer).collect::<Result<_, TchError>>()?, length: 0 })
    }

    /// Tokens that it holds.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes keys and values [nkv, n, hd] of `layer` behind the tokens it holds, and gives both back whole:
    /// [nkv, len + n, hd]. They are views, good until the next call.
    pub fn append(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> (Tensor, Tensor) {
        let buffers = &mut self.layers[layer];
        let (start, count) = (self.length as i64, keys.size()[1]);
        buffers.reserve(start + count);
        buffers.keys.narrow(1, start, count).copy_(keys);
        buffers.values.narrow(1, start, count).copy_(values);
        (buffers.keys.narrow(1, 0, start + count), buffers.values.narrow(1, 0, start + count))
    }

    /// Keeps the `count` tokens that every layer has appended.
    pub fn advance(&mut self, count: usize) {
        self.length += count;
    }

    /// Keeps the first `length` tokens only.
    pub fn crop(&mut self, length: usize) {
        assert!(length <= self.length, "a cache of {} tokens cannot be cropped to {length}", self.length);
        self.length = length;
    }
}

impl LayerBuffers {
    fn reserve(&mut self, needed: i64) {
        let capacity = self.keys.size()[1];
        if needed <= capacity {
            return;
        }
        let grown = needed.max(2 * capacity);
        for buffer in [&mut self.keys, &mut self.values] {
            *buffer = buffer.constant_pad_nd([0, 0, 0, grown - capacity]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: i64, count: i64) -> Tensor {
        Tensor::arange_start(first, first + count, (Kind::Float, Device::Cpu)).view([1, count, 1])
    }

    fn appended(cache: &mut KvCache, first: i64, count: i64) -> Vec<f32> {
        let (keys, values) = cache.append(0, &rows(first, count), &rows(first + 100, count));
        cache.advance(count as usize);
        assert!((&values - &keys).eq(100.0).all().double_value(&[]) == 1.0);
        Vec::try_from(keys.reshape(-1)).unwrap()
    }

    #[test]
    fn tokens_outlive_growth_and_crops() {
        let shape = KvShape { layers: 1, heads: 1, head_dim: 1 };
        let mut cache = KvCache::new(shape, 2, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(appended(&mut cache, 0, 2), [0.0, 1.0]);
        assert_eq!(appended(&mut cache, 2, 3), [0.0, 1.0, 2.0, 3.0, 4.0]);
        cache.crop(3);
        assert_eq!(appended(&mut cache, 7, 1), [0.0, 1.0, 2.0, 7.0]);
        cache.crop(0);
        assert!(cache.is_empty());
        assert_eq!(appended(&mut cache, 9, 1), [9.0]);
    }
}
