//! Sorting in little code: the standard library compiles kilobytes for each type and order. In place, not stable.

/// Sorts ascending.
pub(crate) fn sort<T: Ord>(items: &mut [T]) {
    by(items, |a, b| a < b);
}

/// Sorts by a key, ascending.
pub(crate) fn by_key<T, K: Ord>(items: &mut [T], mut key: impl FnMut(&T) -> K) {
    by(items, |a, b| key(a) < key(b));
}

/// Sorts by an order, of which `before` returns whether it puts one item before another: a heap sort.
pub(crate) fn by<T>(items: &mut [T], mut before: impl FnMut(&T, &T) -> bool) {
    let len = items.len();
    for step in (1..len + len / 2).rev() {
        // First every parent sinks, then the largest item moves behind the heap, one after another.
        let (mut root, end) = if step < len { (0, step) } else { (step - len, len) };
        if step < len {
            items.swap(0, end);
        }
        while 2 * root + 1 < end {
            let mut child = 2 * root + 1;
            if child + 1 < end && before(&items[child], &items[child + 1]) {
                child += 1;
            }
            if !before(&items[root], &items[child]) {
                break;
            }
            items.swap(root, child);
            root = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn items_are_in_order(mut items: Vec<u8>) {
            let mut expected = items.clone();
            expected.sort();
            sort(&mut items);
            prop_assert_eq!(&items, &expected);
            expected.reverse();
            by_key(&mut items, |item| std::cmp::Reverse(*item));
            prop_assert_eq!(items, expected);
        }
    }
}
