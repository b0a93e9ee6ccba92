SELECT name, price*2 FROM small WHERE id > 1 ORDER BY name;
