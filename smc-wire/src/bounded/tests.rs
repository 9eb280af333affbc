use super::*;

#[test]
fn holds_what_fits() {
    let list = Bounded::<u8, 3>::from_slice(&[1, 2]).unwrap();
    assert_eq!(list.as_slice(), [1, 2]);
    assert_eq!(Bounded::<u8, 3>::from_slice(&[0; 4]), None);
    assert_eq!(
        Bounded::<u8, 3>::from_iter_lossy(0..9).as_slice(),
        [0, 1, 2]
    );
    assert_eq!(Bounded::<u8, 0>::new().push(1), Err(1));
}

#[test]
fn equal_by_items() {
    let mut short = Bounded::<u8, 3>::from_slice(&[1]).unwrap();
    let long = Bounded::<u8, 3>::from_slice(&[1, 2]).unwrap();
    assert_ne!(short, long);
    short.push(2).unwrap();
    assert_eq!(short, long);
    assert_eq!(std::format!("{long:?}"), "[1, 2]");
    assert_eq!((&long).into_iter().sum::<u8>(), 3);
}
