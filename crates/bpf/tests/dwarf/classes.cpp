// A host in C++: a base class, a class that is defined apart from where it is declared, and one that is in a unit of
// its own while who has it as a member is not.
namespace model {
struct Inner {
	int first;
	struct Deep {
		long before, here;
	} deep;
};

struct Base {
	static int none;
	char before;
	int inherited;
};

struct Host : Base {
	virtual int run();
	struct Apart;
	Inner inner;
	Apart *apart;
};

struct Host::Apart {
	int before;
	Inner::Deep deep;
};

int Host::run()
{
	return 0;
}
}

namespace {
struct Local {
	int before;
	model::Inner::Deep deep;
};
Local local;
}

model::Host host;
model::Host::Apart apart;

long use()
{
	return local.deep.here + local.before;
}
