# SPDX-License-Identifier: Apache-2.0
"""TEXT: some 4,000 tokens of English prose from works in the public domain: the Declaration of Independence,
the Gettysburg Address, the first chapters of Genesis in the King James version, the opening of Alice's
Adventures in Wonderland, and of Pride and Prejudice, A Tale of Two Cities and Moby-Dick."""

TEXT = """\
When in the Course of human events, it becomes necessary for one people to dissolve the political bands which \
have connected them with another, and to assume among the powers of the earth, the separate and equal station to \
which the Laws of Nature and of Nature's God entitle them, a decent respect to the opinions of mankind requires \
that they should declare the causes which impel them to the separation.

We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator \
with certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness. That to secure \
these rights, Governments are instituted among Men, deriving their just powers from the consent of the governed, \
That whenever any Form of Government becomes destructive of these ends, it is the Right of the People to alter or \
to abolish it, and to institute new Government, laying its foundation on such principles and organizing its powers \
in such form, as to them shall seem most likely to effect their Safety and Happiness. Prudence, indeed, will \
dictate that Governments long established should not be changed for light and transient causes; and accordingly \
all experience hath shewn, that mankind are more disposed to suffer, while evils are sufferable, than to right \
themselves by abolishing the forms to which they are accustomed. But when a long train of abuses and usurpations, \
pursuing invariably the same Object evinces a design to reduce them under absolute Despotism, it is their right, \
it is their duty, to throw off such Government, and to provide new Guards for their future security. Such has been \
the patient sufferance of these Colonies; and such is now the necessity which constrains them to alter their former \
Systems of Government. The history of the present King of Great Britain is a history of repeated injuries and \
usurpations, all having in direct object the establishment of an absolute Tyranny over these States. To prove this, \
let Facts be submitted to a candid world.

He has refused his Assent to Laws, the most wholesome and necessary for the public good. He has forbidden his \
Governors to pass Laws of immediate and pressing importance, unless suspended in their operation till his Assent \
should be obtained; and when so suspended, he has utterly neglected to attend to them. He has refused to pass other \
Laws for the accommodation of large districts of people, unless those people would relinquish the right of \
Representation in the Legislature, a right inestimable to them and formidable to tyrants only. He has called \
together legislative bodies at places unusual, uncomfortable, and distant from the depository of their public \
Records, for the sole purpose of fatiguing them into compliance with his measures. He has dissolved Representative \
Houses repeatedly, for opposing with manly firmness his invasions on the rights of the people. He has refused for a \
long time, after such dissolutions, to cause others to be elected; whereby the Legislative powers, incapable of \
Annihilation, have returned to the People at large for their exercise; the State remaining in the mean time exposed \
to all the dangers of invasion from without, and convulsions within.

We, therefore, the Representatives of the united States of America, in General Congress, Assembled, appealing to \
the Supreme Judge of the world for the rectitude of our intentions, do, in the Name, and by Authority of the good \
People of these Colonies, solemnly publish and declare, That these United Colonies are, and of Right ought to be \
Free and Independent States; that they are Absolved from all Allegiance to the British Crown, and that all \
political connection between them and the State of Great Britain, is and ought to be totally dissolved; and that as \
Free and Independent States, they have full Power to levy War, conclude Peace, contract Alliances, establish \
Commerce, and to do all other Acts and Things which Independent States may of right do. And for the support of this \
Declaration, with a firm reliance on the protection of divine Providence, we mutually pledge to each other our \
Lives, our Fortunes and our sacred Honor.

Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and \
dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing \
whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great \
battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who \
here gave their lives that that nation might live. It is altogether fitting and proper that we should do this. But, \
in a larger sense, we can not dedicate, we can not consecrate, we can not hallow this ground. The brave men, living \
and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The world will \
little note, nor long remember what we say here, but it can never forget what they did here. It is for us the \
living, rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly \
advanced. It is rather for us to be here dedicated to the great task remaining before us, that from these honored \
dead we take increased devotion to that cause for which they gave the last full measure of devotion, that we here \
highly resolve that these dead shall not have died in vain, that this nation, under God, shall have a new birth of \
freedom, and that government of the people, by the people, for the people, shall not perish from the earth.

In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was \
upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be \
light: and there was light. And God saw the light, that it was good: and God divided the light from the darkness. \
And God called the light Day, and the darkness he called Night. And the evening and the morning were the first day. \
And God said, Let there be a firmament in the midst of the waters, and let it divide the waters from the waters. \
And God made the firmament, and divided the waters which were under the firmament from the waters which were above \
the firmament: and it was so. And God called the firmament Heaven. And the evening and the morning were the second \
day. And God said, Let the waters under the heaven be gathered together unto one place, and let the dry land \
appear: and it was so. And God called the dry land Earth; and the gathering together of the waters called he Seas: \
and God saw that it was good. And God said, Let the earth bring forth grass, the herb yielding seed, and the fruit \
tree yielding fruit after his kind, whose seed is in itself, upon the earth: and it was so. And the earth brought \
forth grass, and herb yielding seed after his kind, and the tree yielding fruit, whose seed was in itself, after \
his kind: and God saw that it was good. And the evening and the morning were the third day. And God said, Let there \
be lights in the firmament of the heaven to divide the day from the night; and let them be for signs, and for \
seasons, and for days, and years: And let them be for lights in the firmament of the heaven to give light upon the \
earth: and it was so. And God made two great lights; the greater light to rule the day, and the lesser light to \
rule the night: he made the stars also. And God set them in the firmament of the heaven to give light upon the \
earth, and to rule over the day and over the night, and to divide the light from the darkness: and God saw that it \
was good. And the evening and the morning were the fourth day. And God said, Let the waters bring forth abundantly \
the moving creature that hath life, and fowl that may fly above the earth in the open firmament of heaven. And God \
created great whales, and every living creature that moveth, which the waters brought forth abundantly, after their \
kind, and every winged fowl after his kind: and God saw that it was good. And God blessed them, saying, Be \
fruitful, and multiply, and fill the waters in the seas, and let fowl multiply in the earth. And the evening and \
the morning were the fifth day.

Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or \
twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what \
is the use of a book," thought Alice "without pictures or conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and \
stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the \
daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit \
say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over afterwards, it occurred to her that \
she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually took \
a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it \
flashed across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take \
out of it, and burning with curiosity, she ran across the field after it, and fortunately was just in time to see \
it pop down a large rabbit-hole under the hedge.

In another moment down went Alice after it, never once considering how in the world she was to get out again.

The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that Alice \
had not a moment to think about stopping herself before she found herself falling down a very deep well.

Either the well was very deep, or she fell very slowly, for she had plenty of time as she went down to look about \
her and to wonder what was going to happen next. First, she tried to look down and make out what she was coming to, \
but it was too dark to see anything; then she looked at the sides of the well, and noticed that they were filled \
with cupboards and book-shelves; here and there she saw maps and pictures hung upon pegs. She took down a jar from \
one of the shelves as she passed; it was labelled "ORANGE MARMALADE", but to her great disappointment it was empty: \
she did not like to drop the jar for fear of killing somebody underneath, so managed to put it into one of the \
cupboards as she fell past it.

"Well!" thought Alice to herself, "after such a fall as this, I shall think nothing of tumbling down stairs! How \
brave they'll all think me at home! Why, I wouldn't say anything about it, even if I fell off the top of the \
house!" (Which was very likely true.)

Down, down, down. Would the fall never come to an end? "I wonder how many miles I've fallen by this time?" she said \
aloud. "I must be getting somewhere near the centre of the earth. Let me see: that would be four thousand miles \
down, I think" (for, you see, Alice had learnt several things of this sort in her lessons in the schoolroom, and \
though this was not a very good opportunity for showing off her knowledge, as there was no one to listen to her, \
still it was good practice to say it over) "yes, that's about the right distance, but then I wonder what Latitude \
or Longitude I've got to?" (Alice had no idea what Latitude was, or Longitude either, but thought they were nice \
grand words to say.)

It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a \
wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this \
truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of \
some one or other of their daughters.

"My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?"

Mr. Bennet replied that he had not.

"But it is," returned she; "for Mrs. Long has just been here, and she told me all about it."

Mr. Bennet made no answer.

"Do you not want to know who has taken it?" cried his wife impatiently.

"You want to tell me, and I have no objection to hearing it."

This was invitation enough.

"Why, my dear, you must know, Mrs. Long says that Netherfield is taken by a young man of large fortune from the \
north of England; that he came down on Monday in a chaise and four to see the place, and was so much delighted with \
it that he agreed with Mr. Morris immediately; that he is to take possession before Michaelmas, and some of his \
servants are to be in the house by the end of next week."

"What is his name?"

"Bingley."

"Is he married or single?"

"Oh! Single, my dear, to be sure! A single man of large fortune; four or five thousand a year. What a fine thing for \
our girls!"

"How so? How can it affect them?"

"My dear Mr. Bennet," replied his wife, "how can you be so tiresome! You must know that I am thinking of his \
marrying one of them."

It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was \
the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness, it \
was the spring of hope, it was the winter of despair, we had everything before us, we had nothing before us, we were \
all going direct to Heaven, we were all going direct the other way; in short, the period was so far like the present \
period, that some of its noisiest authorities insisted on its being received, for good or for evil, in the \
superlative degree of comparison only. There were a king with a large jaw and a queen with a plain face, on the \
throne of England; there were a king with a large jaw and a queen with a fair face, on the throne of France. In both \
countries it was clearer than crystal to the lords of the State preserves of loaves and fishes, that things in \
general were settled for ever.

Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and nothing \
particular to interest me on shore, I thought I would sail about a little and see the watery part of the world. It \
is a way I have of driving off the spleen and regulating the circulation. Whenever I find myself growing grim about \
the mouth; whenever it is a damp, drizzly November in my soul; whenever I find myself involuntarily pausing before \
coffin warehouses, and bringing up the rear of every funeral I meet; and especially whenever my hypos get such an \
upper hand of me, that it requires a strong moral principle to prevent me from deliberately stepping into the \
street, and methodically knocking people's hats off, then, I account it high time to get to sea as soon as I can. \
This is my substitute for pistol and ball. With a philosophical flourish Cato throws himself upon his sword; I \
quietly take to the ship. There is nothing surprising in this. If they but knew it, almost all men in their degree, \
some time or other, cherish very nearly the same feelings towards the ocean with me.

There now is your insular city of the Manhattoes, belted round by wharves as Indian isles by coral reefs; commerce \
surrounds it with her surf. Right and left, the streets take you waterward. Its extreme downtown is the battery, \
where that noble mole is washed by waves, and cooled by breezes, which a few hours previous were out of sight of \
land. Look at the crowds of water-gazers there. Circumambulate the city of a dreamy Sabbath afternoon. Go from \
Corlears Hook to Coenties Slip, and from thence, by Whitehall, northward. What do you see? Posted like silent \
sentinels all around the town, stand thousands upon thousands of mortal men fixed in ocean reveries. Some leaning \
against the spiles; some seated upon the pier-heads; some looking over the bulwarks of ships from China; some high \
aloft in the rigging, as if striving to get a still better seaward peep. But these are all landsmen; of week days \
pent up in lath and plaster, tied to counters, nailed to benches, clinched to desks. How then is this? Are the green \
fields gone? What do they here?

But look! here come more crowds, pacing straight for the water, and seemingly bound for a dive. Strange! Nothing \
will content them but the extremest limit of the land; loitering under the shady lee of yonder warehouses will not \
suffice. No. They must get just as nigh the water as they possibly can without falling in. And there they stand, \
miles of them, leagues. Inlanders all, they come from lanes and alleys, streets and avenues, north, east, south, and \
west. Yet here they all unite. Tell me, does the magnetic virtue of the needles of the compasses of all those ships \
attract them thither?

And God said, Let the earth bring forth the living creature after his kind, cattle, and creeping thing, and beast \
of the earth after his kind: and it was so. And God made the beast of the earth after his kind, and cattle after \
their kind, and every thing that creepeth upon the earth after his kind: and God saw that it was good. And God said, \
Let us make man in our image, after our likeness: and let them have dominion over the fish of the sea, and over the \
fowl of the air, and over the cattle, and over all the earth, and over every creeping thing that creepeth upon the \
earth. So God created man in his own image, in the image of God created he him; male and female created he them. And \
God saw every thing that he had made, and, behold, it was very good. And the evening and the morning were the sixth \
day. Thus the heavens and the earth were finished, and all the host of them. And on the seventh day God ended his \
work which he had made; and he rested on the seventh day from all his work which he had made.

Presently she began again. "I wonder if I shall fall right through the earth! How funny it'll seem to come out among \
the people that walk with their heads downward! The Antipathies, I think" (she was rather glad there was no one \
listening, this time, as it didn't sound at all the right word) "but I shall have to ask them what the name of the \
country is, you know."
"""
