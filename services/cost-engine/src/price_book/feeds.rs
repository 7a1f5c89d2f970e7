//! Prices of providers, converted to series: AWS's spot price history, AWS's offer files, and CSV with any columns.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::series::{SeriesFault, SeriesPrice, amount, moment, parse};
use crate::domain::Micros;

/// Why a feed cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The text is not JSON of the expected form.
    #[error("parse the feed")]
    Json(#[source] serde_json::Error),
    /// The text is not CSV.
    #[error("parse the feed")]
    Csv(#[source] csv::Error),
    /// The CSV has no such column.
    #[error("the feed has no column {column:?}; it has {present}")]
    ColumnMissing {
        /// Name of the column.
        column: String,
        /// Columns of the feed.
        present: String,
    },
    /// A value is invalid.
    #[error("{position}: {key}: {problem}")]
    Value {
        /// Line of the feed, or number of the entry.
        position: String,
        /// Column or key.
        key: String,
        /// The fault, and the valid form.
        problem: String,
    },
    /// The feed has two prices for one moment.
    #[error("{time}{zone}: two prices, {first} and {second}", zone = in_zone(zone))]
    Contradiction {
        /// Time as printed.
        time: String,
        /// Zone.
        zone: String,
        /// First price in millionths.
        first: Micros,
        /// Second price in millionths.
        second: Micros,
    },
    /// The feed has no matching price.
    #[error("the feed has no price of {subject}")]
    Empty {
        /// The missing price.
        subject: String,
    },
    /// The stored series is faulty.
    #[error("the series to extend is faulty")]
    Stored(#[source] SeriesFault),
    /// The feed contradicts prices that are already in use.
    #[error(
        "{time}{zone}: the series has {stored} (millionths), the feed {new}: past prices change with a new version of the book only",
        zone = in_zone(zone)
    )]
    Past {
        /// Time as printed.
        time: String,
        /// Zone.
        zone: String,
        /// Price in the series.
        stored: Micros,
        /// Price in the feed.
        new: Micros,
    },
}

fn in_zone(zone: &str) -> String {
    if zone.is_empty() {
        String::new()
    } else {
        format!(" in {zone}")
    }
}

/// Names of the columns of a CSV feed.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Times with offset.
    pub time: String,
    /// Prices per hour.
    pub price: String,
    /// Zones, if there are several.
    pub zone: Option<String>,
}

/// Converts CSV with a header.
///
/// # Errors
/// If it has another form.
pub fn from_csv(text: &str, columns: &Columns) -> Result<Vec<SeriesPrice>, FeedError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().map_err(FeedError::Csv)?.clone();
    let position = |column: &str| {
        let position = header.iter().position(|name| name.trim() == column);
        position.ok_or_else(|| FeedError::ColumnMissing {
            column: column.to_owned(),
            present: header.iter().collect::<Vec<_>>().join(", "),
        })
    };
    let (time, price) = (position(&columns.time)?, position(&columns.price)?);
    let zone = columns.zone.as_deref().map(position).transpose()?;
    let mut prices = Vec::new();
    for row in reader.records() {
        let row = row.map_err(FeedError::Csv)?;
        let line = row.position().map_or(0, csv::Position::line);
        let cell = |at: usize| row.get(at).unwrap_or_default();
        let value = |key: &str, problem| FeedError::Value {
            position: format!("line {line}"),
            key: key.to_owned(),
            problem,
        };
        prices.push(SeriesPrice {
            zone: zone.map(cell).unwrap_or_default().trim().to_owned(),
            from: moment(cell(time)).map_err(|problem| value(&columns.time, problem))?,
            price: amount(cell(price)).map_err(|problem| value(&columns.price, problem))?,
        });
    }
    ordered(prices, "any line")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpotHistory {
    spot_price_history: Vec<SpotPrice>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpotPrice {
    availability_zone: String,
    instance_type: String,
    product_description: String,
    spot_price: String,
    timestamp: String,
}

/// Converts the output of `aws ec2 describe-spot-price-history` for one instance type.
///
/// # Errors
/// If it has another form, or no such price.
pub fn from_aws_spot(
    text: &str,
    instance_type: &str,
    product: &str,
) -> Result<Vec<SeriesPrice>, FeedError> {
    let history: SpotHistory = serde_json::from_str(text).map_err(FeedError::Json)?;
    let mut prices = Vec::new();
    for (number, entry) in history.spot_price_history.into_iter().enumerate() {
        if entry.instance_type != instance_type || entry.product_description != product {
            continue;
        }
        let value = |key: &str, problem| FeedError::Value {
            position: format!("entry {}", number + 1),
            key: key.to_owned(),
            problem,
        };
        let from = moment(&entry.timestamp).map_err(|problem| value("Timestamp", problem))?;
        let price = amount(&entry.spot_price).map_err(|problem| value("SpotPrice", problem))?;
        prices.push(SeriesPrice {
            zone: entry.availability_zone,
            from,
            price,
        });
    }
    ordered(prices, &format!("{instance_type} with {product}"))
}

#[derive(Deserialize)]
struct Offers {
    products: BTreeMap<String, Product>,
    terms: Terms,
}

#[derive(Deserialize)]
struct Product {
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: BTreeMap<String, BTreeMap<String, OfferTerm>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfferTerm {
    effective_date: String,
    price_dimensions: BTreeMap<String, PriceDimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PriceDimension {
    unit: String,
    price_per_unit: BTreeMap<String, String>,
}

/// What an AWS offer must be for.
#[derive(Clone, Debug)]
pub struct OfferFilter {
    /// Instance type.
    pub instance_type: String,
    /// Region code, such as `eu-central-1`.
    pub region: String,
    /// Operating system, such as `Linux`.
    pub operating_system: String,
    /// Currency, such as `USD`.
    pub currency: String,
}

/// Converts an AWS offer file (`offers/v1.0/aws/AmazonEC2/...`): the on-demand price of shared hardware without software.
///
/// # Errors
/// If it has another form, or no such price.
pub fn from_aws_offers(text: &str, filter: &OfferFilter) -> Result<Vec<SeriesPrice>, FeedError> {
    let offers: Offers = serde_json::from_str(text).map_err(FeedError::Json)?;
    let required = [
        ("instanceType", filter.instance_type.as_str()),
        ("regionCode", filter.region.as_str()),
        ("operatingSystem", filter.operating_system.as_str()),
        ("tenancy", "Shared"),
        ("preInstalledSw", "NA"),
        ("capacitystatus", "Used"),
    ];
    let matches = |product: &Product| {
        let attribute = |key: &str| product.attributes.get(key).map(String::as_str);
        required
            .iter()
            .all(|&(key, value)| attribute(key) == Some(value))
    };
    let mut prices = Vec::new();
    let products = offers
        .products
        .iter()
        .filter(|(_, product)| matches(product));
    for (sku, _) in products {
        for term in offers
            .terms
            .on_demand
            .get(sku)
            .into_iter()
            .flat_map(BTreeMap::values)
        {
            let value = |key: &str, problem| FeedError::Value {
                position: format!("SKU {sku}"),
                key: key.to_owned(),
                problem,
            };
            let from =
                moment(&term.effective_date).map_err(|problem| value("effectiveDate", problem))?;
            let hourly = term
                .price_dimensions
                .values()
                .filter(|price| price.unit == "Hrs");
            for price in hourly.filter_map(|price| price.price_per_unit.get(&filter.currency)) {
                let price = amount(price).map_err(|problem| value("pricePerUnit", problem))?;
                prices.push(SeriesPrice {
                    zone: String::new(),
                    from,
                    price,
                });
            }
        }
    }
    ordered(
        prices,
        &format!(
            "{} with {} in {} in {}",
            filter.instance_type, filter.operating_system, filter.region, filter.currency
        ),
    )
}

/// Sorts prices by zone and time. Equal entries count once.
fn ordered(mut prices: Vec<SeriesPrice>, subject: &str) -> Result<Vec<SeriesPrice>, FeedError> {
    prices.sort();
    prices.dedup();
    for pair in prices.windows(2) {
        let [first, second] = pair else { continue };
        if (&first.zone, first.from) == (&second.zone, second.from) {
            return Err(FeedError::Contradiction {
                time: printed(first.from),
                zone: first.zone.clone(),
                first: first.price,
                second: second.price,
            });
        }
    }
    if prices.is_empty() {
        return Err(FeedError::Empty {
            subject: subject.to_owned(),
        });
    }
    Ok(prices)
}

/// Adds the newer prices of a feed to the text of a series. Prices up to the last one of the series must be the same in both.
///
/// # Errors
/// If the feed contradicts the series.
pub fn extend(stored: &str, feed: Vec<SeriesPrice>) -> Result<Vec<SeriesPrice>, FeedError> {
    let mut prices = parse(stored).map_err(FeedError::Stored)?;
    let zones: BTreeSet<String> = prices.iter().map(|price| price.zone.clone()).collect();
    let mut added = Vec::new();
    for new in feed {
        let before = prices
            .iter()
            .filter(|price| price.zone == new.zone && price.from <= new.from);
        let known = before.max_by_key(|price| price.from);
        let last = prices.iter().filter(|price| price.zone == new.zone);
        let last = last.map(|price| price.from).max();
        let is_past = last.is_some_and(|last| new.from <= last);
        match known {
            Some(known) if is_past && known.price != new.price => {
                return Err(FeedError::Past {
                    time: printed(new.from),
                    zone: new.zone,
                    stored: known.price,
                    new: new.price,
                });
            }
            // Older than the whole series, or already in effect.
            None if zones.contains(&new.zone) => {}
            Some(_) if is_past => {}
            Some(_) | None => added.push(new),
        }
    }
    prices.extend(added);
    prices.sort();
    Ok(prices)
}

fn printed(time: i64) -> String {
    chrono::DateTime::from_timestamp(time, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price_book::series::print;

    const SPOT: &str = r#"{"SpotPriceHistory": [
        {"AvailabilityZone": "eu-central-1b", "InstanceType": "p4d.24xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "9.8319", "Timestamp": "2026-07-01T02:00:00+00:00"},
        {"AvailabilityZone": "eu-central-1a", "InstanceType": "p4d.24xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "10.1", "Timestamp": "2026-07-01T03:00:00+00:00"},
        {"AvailabilityZone": "eu-central-1a", "InstanceType": "p4d.24xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "9.5", "Timestamp": "2026-06-30T23:00:00.000Z"},
        {"AvailabilityZone": "eu-central-1a", "InstanceType": "p4d.24xlarge", "ProductDescription": "Windows", "SpotPrice": "99", "Timestamp": "2026-06-30T23:00:00.000Z"},
        {"AvailabilityZone": "eu-central-1a", "InstanceType": "m5.large", "ProductDescription": "Linux/UNIX", "SpotPrice": "0.03", "Timestamp": "2026-06-30T23:00:00.000Z"}]}"#;

    #[test]
    fn the_spot_history_of_aws_becomes_a_series() {
        let prices = from_aws_spot(SPOT, "p4d.24xlarge", "Linux/UNIX").unwrap();
        assert_eq!(
            print(&prices),
            "time,price,zone\n2026-06-30T23:00:00Z,9.500000,eu-central-1a\n2026-07-01T02:00:00Z,9.831900,eu-central-1b\n2026-07-01T03:00:00Z,10.100000,eu-central-1a\n"
        );
        let error = from_aws_spot(SPOT, "p5.48xlarge", "Linux/UNIX").unwrap_err();
        assert!(matches!(error, FeedError::Empty { .. }), "{error}");
        let error = from_aws_spot(&SPOT.replace("9.8319", "-1"), "p4d.24xlarge", "Linux/UNIX");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("entry 1: SpotPrice: "), "{error}");
    }

    #[test]
    fn an_offer_file_of_aws_becomes_a_series() {
        let product = |os: &str| {
            serde_json::json!({"attributes": {
                "instanceType": "m5.large", "regionCode": "eu-central-1", "operatingSystem": os,
                "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
            }})
        };
        let term = |unit: &str, usd: &str| {
            serde_json::json!({"t": {"effectiveDate": "2026-07-01T00:00:00Z", "priceDimensions": {
                "d": {"unit": unit, "pricePerUnit": {"USD": usd}},
            }}})
        };
        let offers = serde_json::json!({
            "products": {"A": product("Linux"), "B": product("Windows")},
            "terms": {"OnDemand": {"A": term("Hrs", "0.1150000000"), "B": term("Hrs", "0.2070000000")}},
        });
        let filter = OfferFilter {
            instance_type: "m5.large".into(),
            region: "eu-central-1".into(),
            operating_system: "Linux".into(),
            currency: "USD".into(),
        };
        let prices = from_aws_offers(&offers.to_string(), &filter).unwrap();
        assert_eq!(
            print(&prices),
            "time,price\n2026-07-01T00:00:00Z,0.115000\n"
        );
        let elsewhere = OfferFilter {
            region: "us-east-1".into(),
            ..filter
        };
        let error = from_aws_offers(&offers.to_string(), &elsewhere).unwrap_err();
        assert!(matches!(error, FeedError::Empty { .. }), "{error}");
    }

    #[test]
    fn csv_may_have_other_columns() {
        let columns = Columns {
            time: "valid from".into(),
            price: "EUR/h".into(),
            zone: None,
        };
        let text = "type,EUR/h,valid from\nbig,2.5,2026-07-02T00:00:00+02:00\n\"a, b\",2,2026-07-01T00:00:00+02:00\n";
        let prices = from_csv(text, &columns).unwrap();
        assert_eq!(
            print(&prices),
            "time,price\n2026-06-30T22:00:00Z,2.000000\n2026-07-01T22:00:00Z,2.500000\n"
        );
        for (text, message) in [
            (
                "time,EUR/h\n",
                "the feed has no column \"valid from\"; it has time, EUR/h",
            ),
            ("EUR/h,valid from\n1,soon\n", "line 2: valid from: "),
            (
                "EUR/h,valid from\n0,2026-07-01T00:00:00Z\n",
                "line 2: EUR/h: ",
            ),
            (
                "EUR/h,valid from\n1,2026-07-01T00:00:00Z\n2,2026-07-01T00:00:00Z\n",
                "2026-07-01T00:00:00Z: two prices",
            ),
        ] {
            let error = from_csv(text, &columns).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_series_grows_and_its_past_does_not_change() {
        let price = |hour: i64, micros| SeriesPrice {
            zone: String::new(),
            from: hour * 3600,
            price: Micros(micros),
        };
        let stored = print(&[price(10, 1), price(12, 2)]);
        // A price between two known ones that is in effect already, an older one, and a new one.
        let feed = vec![price(5, 7), price(11, 1), price(12, 2), price(13, 3)];
        let grown = extend(&stored, feed.clone()).unwrap();
        assert_eq!(grown, [price(10, 1), price(12, 2), price(13, 3)]);
        assert_eq!(extend(&print(&grown), feed).unwrap(), grown);
        let error = extend(&stored, vec![price(11, 9)]).unwrap_err();
        assert!(matches!(error, FeedError::Past { .. }), "{error}");
    }
}
