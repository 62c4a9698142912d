//! Arrays in NumPy's format, little-endian and in C order.

use half::f16;

#[allow(dead_code)] // some tests do not use the shape
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Array {
    pub fn read(bytes: &[u8]) -> Self {
        assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00", "version 1");
        let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let header = std::str::from_utf8(&bytes[10..end]).unwrap();
        let field = |name: &str| header.split_once(&format!("'{name}': ")).unwrap().1;
        assert!(field("fortran_order").starts_with("False"));
        let shape = field("shape").split_once('(').unwrap().1.split_once(')').unwrap().0;
        let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect::<Vec<usize>>();
        let data = &bytes[end..];
        let values: Vec<f64> = match &field("descr")[..5] {
            "'<f8'" => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            "'<f4'" => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect(),
            "'<f2'" => data.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
            "'<i4'" => data.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
            "'|i1'" => data.iter().map(|b| f64::from(*b as i8)).collect(),
            "'<u2'" => data.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b).into()).collect(),
            other => panic!("element type {other}"),
        };
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Array { shape, values }
    }
}
