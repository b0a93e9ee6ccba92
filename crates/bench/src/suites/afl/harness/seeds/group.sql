SELECT count(*), max(length(text)) FROM big WHERE id BETWEEN 5 AND 9 GROUP BY text;
