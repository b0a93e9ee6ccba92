INSERT INTO small(name) VALUES(upper('x')||2); UPDATE small SET price=price+1 WHERE name LIKE 't%'; DELETE FROM small WHERE id=1;
