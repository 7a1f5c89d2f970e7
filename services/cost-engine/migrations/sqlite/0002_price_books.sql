-- Which prices a name and version stand for: costs carry both, so they never stand for others.
CREATE TABLE price_books (
    -- Name and version, as cost events carry them.
    label TEXT NOT NULL PRIMARY KEY,
    -- SHA-256 of the book's content, in hexadecimal digits; comments and layout do not count.
    digest TEXT NOT NULL
);
