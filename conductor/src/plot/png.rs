//! Drawings as images.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use thiserror::Error;

use super::{Chart, svg};

/// Pixels of an image for each unit of the drawing: sharp on dense screens too.
const SCALE: f32 = 2.0;

/// An image that could not be made.
#[derive(Debug, Error)]
#[error("the drawing cannot be made an image: {0}")]
pub struct ImageError(String);

/// The charts, one below the other, as a PNG file. The font comes with the program, so the image is
/// the same everywhere.
///
/// # Errors
/// If there is no chart, or more than fit into an image. Draw fewer.
pub fn png(charts: &[Chart]) -> Result<Vec<u8>, ImageError> {
    if charts.is_empty() {
        return Err(ImageError("there is nothing on it".to_owned()));
    }
    let mut options = Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family = fonts.faces().next().map(|face| face.families[0].0.clone());
    fonts.set_sans_serif_family(family.expect("the font has a name"));
    let failed = |error: &dyn std::fmt::Display| ImageError(error.to_string());
    let tree = Tree::from_str(&svg(charts), &options).map_err(|error| failed(&error))?;
    let size = tree.size().to_int_size();
    let size = size
        .scale_by(SCALE)
        .ok_or_else(|| failed(&"it has no size"))?;
    let mut image = Pixmap::new(size.width(), size.height()).ok_or_else(|| failed(&"too large"))?;
    resvg::render(
        &tree,
        Transform::from_scale(SCALE, SCALE),
        &mut image.as_mut(),
    );
    image.encode_png().map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;

    fn chart(name: &str) -> Chart {
        Chart {
            title: "t".to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            series: vec![Series {
                name: name.to_owned(),
                points: vec![(0.0, 0.0), (1.0, 1.0)],
            }],
        }
    }

    fn pixels(charts: &[Chart]) -> Pixmap {
        Pixmap::decode_png(&png(charts).expect("it is small")).expect("it is an image")
    }

    #[test]
    fn an_image_is_twice_as_large_as_the_drawing() {
        let image = pixels(&[chart("a"), chart("b")]);
        assert_eq!((image.width(), image.height()), (1440, 1200));
    }

    #[test]
    fn words_are_drawn() {
        assert_ne!(pixels(&[chart("a")]), pixels(&[chart("b")]));
    }

    #[test]
    fn nothing_is_no_image() {
        assert!(png(&[]).is_err());
    }
}
