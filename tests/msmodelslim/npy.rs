//! As much of NumPy's file format as the goldens use: version 1, C order, little endian.

use std::path::Path;

pub struct Array {
    pub shape: Vec<usize>,
    dtype: String,
    data: Vec<u8>,
}

impl Array {
    pub fn read(path: &Path) -> Array {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{}", path.display());
        let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let header = std::str::from_utf8(&bytes[10..end]).unwrap();
        assert!(header.contains("'fortran_order': False"), "{header}");
        let between = |from: &str, to: &str| {
            let rest = &header[header.find(from).unwrap() + from.len()..];
            rest[..rest.find(to).unwrap()].to_owned()
        };
        let shape = between("'shape': (", ")");
        let shape = shape.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
        Array { shape, dtype: between("'descr': '", "'"), data: bytes[end..].to_vec() }
    }

    fn elements<T, const N: usize>(&self, dtype: &str, from: fn([u8; N]) -> T) -> Vec<T> {
        assert_eq!(self.dtype, dtype);
        let elements: Vec<T> = self.data.chunks_exact(N).map(|b| from(b.try_into().unwrap())).collect();
        assert_eq!(elements.len(), self.shape.iter().product::<usize>());
        elements
    }

    pub fn f32s(&self) -> Vec<f32> {
        self.elements("<f4", f32::from_le_bytes)
    }

    pub fn i32s(&self) -> Vec<i32> {
        self.elements("<i4", i32::from_le_bytes)
    }

    pub fn i8s(&self) -> Vec<i8> {
        self.elements("|i1", i8::from_le_bytes)
    }
}
